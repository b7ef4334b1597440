// A GPU program that maps memory of a program without an agent: its child, which creates a handle,
// exports it, and sends the descriptor. The driver's checkpoint of such a program succeeds, but its
// restore fails. The child exits when its parent does.
#include <errno.h>
#include <unistd.h>

#include "common/mapped.h"
#include "common/pair.h"
#include "common/steady.h"

namespace workloads {
namespace {

constexpr uint32_t kWords = (2u << 20) / sizeof(uint32_t);
constexpr uint64_t kSeed = 950;

[[noreturn]] void LiveAsChild(const Options& options) {
  OpenGpu(options);
  Mapped memory = Make(RandomWords(kSeed, kWords), options.device, STDIN_FILENO);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
  }
  memory.Unmap();
  memory.LetGoOfHandle();
  CloseGpu();
  _exit(0);
}

class Importer : public Steady {
 public:
  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    Options without_ballast = options;
    without_ballast.memory_bytes = 0;
    child_.Start(without_ballast, "LD_PRELOAD");
    memory_ = Import(options.device, child_.socket);
  }

  void Verify() override {
    std::vector<uint32_t> found(kWords);
    CU(cuMemcpyDtoH(found.data(), memory_.address(), kWords * sizeof(uint32_t)));
    Compare("the child's memory", found, RandomWords(kSeed, kWords));
    Steady::Verify();
  }

  void TearDown() override {
    memory_.Unmap();
    memory_.LetGoOfHandle();
    close(child_.socket);
    child_.AwaitSuccess();
    Steady::TearDown();
  }

 private:
  ChildProcess child_;
  Mapped memory_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) workloads::LiveAsChild(options);
  workloads::Importer importer;
  workloads::Run(importer, options);
}
