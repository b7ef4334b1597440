// A GPU program with a child that was forked after cuInit and never calls exec. The child has the
// driver's files open although the driver does not list it as a user, so the tree cannot be dumped.
// The child exits when its parent does.
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/steady.h"

namespace workloads {
namespace {

class Forker : public Steady {
 public:
  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    int ends[2];
    if (pipe(ends) != 0) Fail("pipe: %s", strerror(errno));
    child_ = fork();
    if (child_ < 0) Fail("fork: %s", strerror(errno));
    if (child_ == 0) {
      close(ends[1]);
      char byte;
      // SIGTERM is blocked, as in the parent; only end-of-file on the pipe ends the child.
      while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
      }
      _exit(0);
    }
    close(ends[0]);
    lifeline_ = ends[1];
  }

  void TearDown() override {
    close(lifeline_);
    int status = 0;
    if (waitpid(child_, &status, 0) != child_ || status != 0) Fail("the child failed");
    Steady::TearDown();
  }

 private:
  pid_t child_ = 0;
  int lifeline_ = -1;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Forker forker;
  workloads::Run(forker, options);
}
