// Several buffers that are mixed with each other every round and fully verified every round: an
// ordinary program with its state in cuMemAlloc memory.
#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kBuffers = 4;
constexpr uint32_t kCount = 128 * 1024 + 77;

class Vector : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    steps_ = LoadModule("step");
    step_ = Function(steps_, "step");
    module_ = LoadModule();
    checksum_ = Function(module_, "checksum");
    for (uint32_t b = 0; b < kBuffers; ++b) {
      expected_.push_back(RandomWords(b + 1, kCount));
      buffers_.emplace_back(expected_[b]);
    }
    scratch_ = DeviceArray<uint32_t>(kCount);
    sum_ = DeviceArray<uint64_t>(1);
  }

  // Mixes buffer b with buffer b+1. The last copy is made by the driver, not by a kernel.
  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    uint64_t sum_of_all = 0;
    for (uint32_t b = 0; b < kBuffers; ++b) {
      const uint32_t other = (b + 1) % kBuffers;
      Launch(step_, GridFor(kCount), nullptr, scratch_.address(), buffers_[b].address(),
             buffers_[other].address(), kCount, salt);
      CU(cuMemcpyDtoD(buffers_[b].address(), scratch_.address(), scratch_.bytes()));
      expected_[b] = StepWith(expected_[b], expected_[other], salt);
      sum_of_all = Mix64(sum_of_all) + SumOnDevice(b);
    }
    CompareAll();
    return sum_of_all;
  }

  void Verify() override {
    CompareAll();
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(buffers_[1].address() + 4321); }

  void TearDown() override {
    for (auto& buffer : buffers_) buffer.Free();
    scratch_.Free();
    sum_.Free();
    CU(cuModuleUnload(steps_));
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  uint64_t SumOnDevice(uint32_t b) {
    uint64_t sum = 0;
    CU(cuMemcpyHtoD(sum_.address(), &sum, sizeof sum));
    Launch(checksum_, GridFor(kCount), nullptr, buffers_[b].address(), kCount, sum_.address());
    CU(cuMemcpyDtoH(&sum, sum_.address(), sizeof sum));
    const uint64_t expected = Checksum(expected_[b]);
    if (sum != expected) Fail("buffer %u: the device's own checksum is wrong", b);
    return sum;
  }

  void CompareAll() {
    for (uint32_t b = 0; b < kBuffers; ++b) Compare("buffer", buffers_[b].Read(), expected_[b]);
  }

  CUmodule steps_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUfunction checksum_ = nullptr;
  std::vector<DeviceArray<uint32_t>> buffers_;
  std::vector<std::vector<uint32_t>> expected_;
  DeviceArray<uint32_t> scratch_;
  DeviceArray<uint64_t> sum_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Vector vector;
  workloads::Run(vector, options);
}
