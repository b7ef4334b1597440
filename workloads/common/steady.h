// A minimal GPU workload with one array that changes every round. Workloads that test other
// properties derive from it.
#pragma once

#include "common/gpu.h"

namespace workloads {

class Steady : public Workload {
 public:
  explicit Steady(uint64_t seed = 900) : seed_(seed) {}

  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    expected_ = RandomWords(seed_, kCount);
    words_ = DeviceArray<uint32_t>(expected_);
  }

  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    Launch(step_, GridFor(kCount), nullptr, words_.address(), kCount, salt);
    StepInPlace(expected_, salt);
    const std::vector<uint32_t> found = words_.Read();
    Compare("the array", found, expected_);
    return Checksum(found);
  }

  void Verify() override {
    Compare("the array", words_.Read(), expected_);
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(words_.address() + 5); }

  void TearDown() override {
    words_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  static constexpr uint32_t kCount = 64 * 1024 + 1;

  uint64_t seed_;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  DeviceArray<uint32_t> words_;
  std::vector<uint32_t> expected_;
};

}  // namespace workloads
