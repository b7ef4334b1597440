// Two ranks, each with memory that the other has open through CUDA IPC. A round is a sequence of
// collectives, all launched before either rank waits for one. Like NCCL's kernels, each kernel runs
// until the other rank's has started. The child runs ahead of the parent, so at nearly every moment
// it has work on the GPU that ends only when the parent continues.
#include <string.h>
#include <unistd.h>

#include "common/arithmetic.h"
#include "common/gpu.h"
#include "common/pair.h"

namespace workloads {
namespace {

constexpr uint32_t kWords = 3u << 18;  // more than the agent leaves to the driver
constexpr uint32_t kDataAt = 16;       // before it are the rank's progress and its last round
constexpr uint32_t kDataWords = 64 * 1024 + 1;
constexpr uint32_t kCollectives = 12;  // per round
constexpr uint64_t kSeed = 1200;

class Rank {
 public:
  void SetUp(const Options& options, int rank, int socket) {
    OpenGpu(options);
    module_ = LoadModule();
    meet_ = Function(module_, "meet");
    step_ = Function(module_, "step_in_place");
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    std::vector<uint32_t> words = RandomWords(kSeed + rank, kWords);
    memset(words.data(), 0, kDataAt * sizeof(uint32_t));
    mine_ = DeviceArray<uint32_t>(words);
    expected_.assign(words.begin() + kDataAt, words.begin() + kDataAt + kDataWords);
    CUipcMemHandle handle;
    CU(cuIpcGetMemHandle(&handle, mine_.address()));
    WriteAll(socket, &handle, sizeof handle);
    if (!ReadAll(socket, &handle, sizeof handle)) Fail("the other rank did not start");
    CU(cuIpcOpenMemHandle(&theirs_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }

  // With `last`, the other rank learns that this is the last round.
  uint64_t Round(bool last) {
    ++round_;
    if (last) CU(cuMemsetD32Async(mine_.address() + sizeof(uint32_t), round_, 1, stream_));
    for (uint32_t i = 0; i < kCollectives; ++i) {
      const auto salt = round_ * kCollectives + i;
      Launch(step_, GridFor(kDataWords), stream_, data(), kDataWords, salt);
      Launch(meet_, {1, 32}, stream_, mine_.address(), theirs_, salt);
      StepInPlace(expected_, salt);
    }
    CU(cuStreamSynchronize(stream_));
    return Checksum(expected_);
  }

  bool ToldToEnd() const {
    uint32_t last = 0;
    CU(cuMemcpyDtoH(&last, theirs_ + sizeof(uint32_t), sizeof last));
    return last == round_;
  }

  void Verify() const {
    std::vector<uint32_t> found(kDataWords);
    CU(cuMemcpyDtoH(found.data(), data(), kDataWords * sizeof(uint32_t)));
    Compare("the rank's memory", found, expected_);
    VerifyBallast();
  }
  void Sabotage() const { FlipByte(data() + 77); }

  // Requires that the other rank has closed this rank's memory or will not use it again.
  void TearDown() {
    CU(cuIpcCloseMemHandle(theirs_));
    CU(cuStreamDestroy(stream_));
    CU(cuModuleUnload(module_));
    mine_.Free();
    CloseGpu();
  }

 private:
  CUdeviceptr data() const { return mine_.address() + kDataAt * sizeof(uint32_t); }

  CUmodule module_ = nullptr;
  CUfunction meet_ = nullptr, step_ = nullptr;
  CUstream stream_ = nullptr;
  DeviceArray<uint32_t> mine_;
  CUdeviceptr theirs_ = 0;
  std::vector<uint32_t> expected_;
  uint32_t round_ = 0;
};

[[noreturn]] void LiveAsChild(const Options& options) {
  Rank rank;
  rank.SetUp(options, 1, STDIN_FILENO);
  do {
    rank.Round(/*last=*/false);
  } while (!rank.ToldToEnd());
  rank.Verify();
  rank.TearDown();
  _exit(0);
}

class Collective : public Workload {
 public:
  void SetUp(const Options& options) override {
    Options other = options;
    if (options.devices > 1) ++other.device;
    child_.Start(other);
    rank_.SetUp(options, 0, child_.socket);
    close(child_.socket);
  }
  uint64_t Round(uint64_t) override { return rank_.Round(/*last=*/false); }
  void Verify() override {
    rank_.Round(/*last=*/true);
    child_.AwaitSuccess();
    rank_.Verify();
  }
  void Sabotage() override { rank_.Sabotage(); }
  void TearDown() override { rank_.TearDown(); }

 private:
  Rank rank_;
  ChildProcess child_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) workloads::LiveAsChild(options);
  workloads::Collective collective;
  workloads::Run(collective, options);
}
