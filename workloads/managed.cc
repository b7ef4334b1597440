// A program with managed memory, which no driver so far can checkpoint. A suspend or dump must be
// refused, and the program must continue unharmed.
#include <bit>
#include <cstring>

#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kCount = 64 * 1024;

class Managed : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    CU(cuMemAllocManaged(&address_, kCount * sizeof(uint32_t), CU_MEM_ATTACH_GLOBAL));
    words_ = std::bit_cast<uint32_t*>(address_);
    expected_ = RandomWords(800, kCount);
    memcpy(words_, expected_.data(), kCount * sizeof(uint32_t));
  }

  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    Launch(step_, GridFor(kCount), nullptr, address_, kCount, salt);
    CU(cuCtxSynchronize());
    StepInPlace(expected_, salt);
    Compare("managed memory", words_, expected_.data(), kCount);
    return Checksum(words_, kCount);
  }

  void Verify() override {
    Compare("managed memory", words_, expected_.data(), kCount);
    VerifyBallast();
  }

  void Sabotage() override { words_[77] ^= 0x40; }

  void TearDown() override {
    CU(cuMemFree(address_));
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUdeviceptr address_ = 0;
  uint32_t* words_ = nullptr;
  std::vector<uint32_t> expected_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Managed managed;
  workloads::Run(managed, options);
}
