// A GPU program with an open io_uring, which CRIU cannot save.
#include <errno.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/steady.h"

namespace workloads {
namespace {

class IoUring : public Steady {
 public:
  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    io_uring_params parameters{};
    ring_ = static_cast<int>(syscall(SYS_io_uring_setup, 8, &parameters));
    if (ring_ < 0) Fail("io_uring_setup: %s", strerror(errno));
  }

  void TearDown() override {
    close(ring_);
    Steady::TearDown();
  }

 private:
  int ring_ = -1;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::IoUring iouring;
  workloads::Run(iouring, options);
}
