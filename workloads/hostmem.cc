// Host memory that the device reads and writes in place: pinned, mapped and registered. The CPU
// also changes it between kernels.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <array>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kCount = 64 * 1024;  // whole pages, as registration requires
constexpr size_t kBytes = kCount * sizeof(uint32_t);

enum Kind : uint32_t { kPinned, kMapped, kPortable, kRegistered, kKinds };

struct Region {
  uint32_t* host = nullptr;
  CUdeviceptr device = 0;
  std::vector<uint32_t> expected;
};

void* Allocate(Kind kind) {
  void* memory = nullptr;
  switch (kind) {
    case kPinned:
      CU(cuMemAllocHost(&memory, kBytes));
      break;
    case kMapped:
      CU(cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
      break;
    case kPortable:
      CU(cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
      break;
    default:
      memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) Fail("mmap: %s", strerror(errno));
      CU(cuMemHostRegister(memory, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  }
  return memory;
}

class HostMem : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule();
    step_ = Function(module_, "step_through_host");
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      Region& region = regions_[kind];
      region.host = static_cast<uint32_t*>(Allocate(static_cast<Kind>(kind)));
      CU(cuMemHostGetDevicePointer(&region.device, region.host, 0));
      region.expected = RandomWords(200 + kind, kCount);
      memcpy(region.host, region.expected.data(), kBytes);
    }
    on_device_expected_ = RandomWords(300, kCount);
    on_device_ = DeviceArray<uint32_t>(on_device_expected_);
  }

  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    uint64_t sum = 0;
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      Region& own = regions_[kind];
      const Region& other = regions_[(kind + 1) % kKinds];
      // The CPU changes one word in each page, so that every page differs from the device's result.
      for (uint32_t i = salt % 1024; i < kCount; i += 1024) {
        own.host[i] += salt;
        own.expected[i] += salt;
      }
      Launch(step_, GridFor(kCount), nullptr, own.device, other.device, on_device_.address(),
             kCount, salt);
      CU(cuCtxSynchronize());
      for (uint32_t i = 0; i < kCount; ++i) {
        own.expected[i] = Step(own.expected[i], other.expected[i], i, salt);
        on_device_expected_[i] += own.expected[i];
      }
      sum = Mix64(sum) + Checksum(own.host, kCount);
    }
    CompareAll();
    return Mix64(sum) + Checksum(on_device_.Read());
  }

  void Verify() override {
    CompareAll();
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(on_device_.address() + 99); }

  void TearDown() override {
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      void* memory = regions_[kind].host;
      if (kind == kRegistered) {
        CU(cuMemHostUnregister(memory));
        munmap(memory, kBytes);
      } else {
        CU(cuMemFreeHost(memory));
      }
    }
    on_device_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  void CompareAll() {
    static constexpr const char* kNames[kKinds] = {"pinned memory", "mapped memory",
                                                   "portable memory", "registered memory"};
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      const Region& region = regions_[kind];
      Compare(kNames[kind], region.host, region.expected.data(), kCount);
      // Read the memory as the device sees it, by a copy through the device pointer.
      std::vector<uint32_t> seen(kCount);
      CU(cuMemcpyDtoH(seen.data(), region.device, kBytes));
      Compare(kNames[kind], seen, region.expected);
    }
    Compare("device memory", on_device_.Read(), on_device_expected_);
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  std::array<Region, kKinds> regions_;
  DeviceArray<uint32_t> on_device_;
  std::vector<uint32_t> on_device_expected_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::HostMem hostmem;
  workloads::Run(hostmem, options);
}
