// Threads that ask all the while how far streams are, and wait for them, beside the one that works:
// as XLA's do. cuStreamQuery passes the driver's lock and reads memory that its checkpoint takes
// away, so by the driver alone this program is killed.
#include <time.h>

#include <array>
#include <atomic>
#include <thread>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kCount = 16 * 1024 + 5;

enum Call : uint32_t { kStreamQuery, kEventQuery, kStreamSynchronize, kEventSynchronize, kCalls };

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
    for (uint32_t i = 0; i < kCount; ++i) expected_[i] = Step(expected_[i], i ^ salt, i, salt);
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
    on_device_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  static void Rest() {
    const timespec rest{0, 20000};
    nanosleep(&rest, nullptr);
  }

  void Watch(Call call) {
    CU(cuCtxSetCurrent(PrimaryContext()));
    while (!stop_) {
      CUresult result = CUDA_SUCCESS;
      if (call == kStreamQuery) result = cuStreamQuery(stream_);
      if (call == kEventQuery) result = cuEventQuery(event_);
      if (call == kStreamSynchronize) result = cuStreamSynchronize(stream_);
      if (call == kEventSynchronize) result = cuEventSynchronize(event_);
      if (result != CUDA_ERROR_NOT_READY) CU(result);
      ++counts_[call];
      Rest();
    }
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
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
