// Threads that continuously query streams and wait for them, like XLA's, while the main thread
// works. The driver's lock does not block cuStreamQuery, which reads memory that the checkpoint
// unmaps, so this program is killed when the driver alone suspends it. Other threads query an
// address in a mapping of the program; the driver does not know this address while the memory is
// unmapped.
#include <time.h>

#include <array>
#include <atomic>
#include <thread>

#include "common/gpu.h"
#include "common/mapped.h"

namespace workloads {
namespace {

constexpr uint32_t kCount = 16 * 1024 + 5;

// The allocation granularity of all known GPUs.
constexpr size_t kMappedBytes = 2u << 20;

enum Call : uint32_t {
  kStreamQuery,
  kEventQuery,
  kStreamSynchronize,
  kEventSynchronize,
  kPointerAttribute,
  kPointerAttributes,
  kAddressRange,
  kCalls
};

class Watcher : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    expected_ = RandomWords(701, kCount);
    on_device_ = DeviceArray<uint32_t>(expected_);
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event_, stream_));
    Map(options.device);
    for (uint32_t call = 0; call < kCalls; ++call) {
      threads_[call] = std::thread([this, call] { Watch(static_cast<Call>(call)); });
    }
  }

  uint64_t Round(uint64_t round) override {
    for (const auto& count : counts_) {
      const uint64_t before = count;
      while (count == before) Rest();
    }
    const auto salt = static_cast<uint32_t>(round);
    Launch(step_, GridFor(kCount), stream_, on_device_.address(), kCount, salt);
    CU(cuEventRecord(event_, stream_));
    CU(cuStreamSynchronize(stream_));
    StepInPlace(expected_, salt);
    const std::vector<uint32_t> seen = on_device_.Read();
    Compare("device memory", seen, expected_);
    return Checksum(seen);
  }

  void Verify() override {
    Compare("device memory", on_device_.Read(), expected_);
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(on_device_.address() + 99); }

  void TearDown() override {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
    CU(cuEventDestroy(event_));
    CU(cuStreamDestroy(stream_));
    mapped_.Unmap();
    mapped_.LetGoOfHandle();
    on_device_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  static void Rest() {
    const timespec rest{0, 20000};
    nanosleep(&rest, nullptr);
  }

  void Map(int device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemGenericAllocationHandle handle = 0;
    CU(cuMemCreate(&handle, kMappedBytes, &properties, 0));
    mapped_.Map(handle, kMappedBytes, device);
  }

  void AskKind() const {
    unsigned kind = 0;
    CU(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped_.address()));
    if (kind != CU_MEMORYTYPE_DEVICE) Fail("its mapping has memory type %u", kind);
  }

  void AskKinds() const {
    unsigned kind = 0;
    CUpointer_attribute what = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void* where = &kind;
    CU(cuPointerGetAttributes(1, &what, &where, mapped_.address()));
    if (kind != CU_MEMORYTYPE_DEVICE) Fail("its mapping is listed as memory type %u", kind);
  }

  void AskRange() const {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CU(cuMemGetAddressRange_v2(&base, &bytes, mapped_.address()));
    if (base != mapped_.address() || bytes != kMappedBytes) {
      Fail("the driver reports %zu bytes for its mapping", bytes);
    }
  }

  void Watch(Call call) {
    CU(cuCtxSetCurrent(PrimaryContext()));
    while (!stop_) {
      CUresult result = CUDA_SUCCESS;
      if (call == kStreamQuery) result = cuStreamQuery(stream_);
      if (call == kEventQuery) result = cuEventQuery(event_);
      if (call == kStreamSynchronize) result = cuStreamSynchronize(stream_);
      if (call == kEventSynchronize) result = cuEventSynchronize(event_);
      if (call == kPointerAttribute) AskKind();
      if (call == kPointerAttributes) AskKinds();
      if (call == kAddressRange) AskRange();
      if (result != CUDA_ERROR_NOT_READY) CU(result);
      ++counts_[call];
      Rest();
    }
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  Mapped mapped_;
  DeviceArray<uint32_t> on_device_;
  std::vector<uint32_t> expected_;
  std::array<std::thread, kCalls> threads_;
  std::array<std::atomic<uint64_t>, kCalls> counts_{};
  std::atomic<bool> stop_{false};
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Watcher watcher;
  workloads::Run(watcher, options);
}
