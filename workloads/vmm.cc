// Virtual memory management by the program itself: one reserved range with several handles mapped
// into it, some exportable, some remapped during their lifetime. Each round swaps the addresses of
// two handles, and their content must move with them.
#include <array>
#include <utility>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kHandles = 5;
// The allocation granularity of all known GPUs.
constexpr size_t kBytes = 2u << 20;
constexpr uint32_t kCount = kBytes / sizeof(uint32_t);

class Vmm : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");

    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, options.device};
    size_t granularity = 0;
    CU(cuMemGetAllocationGranularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    if (kBytes % granularity != 0) Fail("the granularity is %zu bytes", granularity);
    // The range has room for one handle more, so that it has a hole.
    CU(cuMemAddressReserve(&base_, (kHandles + 1) * kBytes, 0, 0, 0));
    for (uint32_t h = 0; h < kHandles; ++h) {
      properties_.requestedHandleTypes =
          h % 2 == 0 ? CU_MEM_HANDLE_TYPE_NONE : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      CU(cuMemCreate(&handles_[h], kBytes, &properties_, 0));
      places_[h] = h;
      Map(h);
      expected_[h] = RandomWords(700 + h, kCount);
      CU(cuMemcpyHtoD(Address(h), expected_[h].data(), kBytes));
    }
    more_.resize(static_cast<size_t>(options.handles));
    if (!more_.empty()) CU(cuMemAddressReserve(&more_base_, more_.size() * kBytes, 0, 0, 0));
    for (size_t m = 0; m < more_.size(); ++m) {
      CU(cuMemCreate(&more_[m], kBytes, &properties_, 0));
      MapAt(more_base_ + m * kBytes, more_[m]);
      CU(cuMemcpyHtoD(more_base_ + m * kBytes, RandomWords(800 + m, kCount).data(), kBytes));
    }
  }

  uint64_t Round(uint64_t round) override {
    const auto a = static_cast<uint32_t>(round % kHandles);
    const auto b = static_cast<uint32_t>((round * 3 + 1) % kHandles);
    if (a != b) {
      CU(cuMemUnmap(Address(a), kBytes));
      CU(cuMemUnmap(Address(b), kBytes));
      std::swap(places_[a], places_[b]);
      Map(a);
      Map(b);
    }
    // Launches a kernel on two of the handles; the others must not change.
    const auto salt = static_cast<uint32_t>(round);
    for (uint32_t h : {a, (a + 2) % kHandles}) {
      Launch(step_, GridFor(kCount), nullptr, Address(h), kCount, salt);
      StepInPlace(expected_[h], salt);
    }
    return CompareAll();
  }

  void Verify() override {
    CompareAll();
    std::vector<uint32_t> found(kCount);
    for (size_t m = 0; m < more_.size(); ++m) {
      CU(cuMemcpyDtoH(found.data(), more_base_ + m * kBytes, kBytes));
      Compare("memory of an additional handle", found, RandomWords(800 + m, kCount));
    }
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(Address(4) + 12345); }

  void TearDown() override {
    for (uint32_t h = 0; h < kHandles; ++h) {
      CU(cuMemUnmap(Address(h), kBytes));
      CU(cuMemRelease(handles_[h]));
    }
    CU(cuMemAddressFree(base_, (kHandles + 1) * kBytes));
    for (size_t m = 0; m < more_.size(); ++m) {
      CU(cuMemUnmap(more_base_ + m * kBytes, kBytes));
      CU(cuMemRelease(more_[m]));
    }
    if (!more_.empty()) CU(cuMemAddressFree(more_base_, more_.size() * kBytes));
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  CUdeviceptr Address(uint32_t h) const { return base_ + places_[h] * kBytes; }

  void Map(uint32_t h) { MapAt(Address(h), handles_[h]); }
  void MapAt(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
    CU(cuMemMap(address, kBytes, 0, handle, 0));
    const CUmemAccessDesc access{properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemSetAccess(address, kBytes, &access, 1));
  }

  uint64_t CompareAll() {
    uint64_t sum = 0;
    std::vector<uint32_t> found(kCount);
    for (uint32_t h = 0; h < kHandles; ++h) {
      CU(cuMemcpyDtoH(found.data(), Address(h), kBytes));
      Compare("a handle's memory", found, expected_[h]);
      sum = Mix64(sum) + Checksum(found);
    }
    return sum;
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUmemAllocationProp properties_{};
  CUdeviceptr base_ = 0;
  std::array<CUmemGenericAllocationHandle, kHandles> handles_{};
  std::array<uint32_t, kHandles> places_{};
  std::array<std::vector<uint32_t>, kHandles> expected_;
  CUdeviceptr more_base_ = 0;
  std::vector<CUmemGenericAllocationHandle> more_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Vmm vmm;
  workloads::Run(vmm, options);
}
