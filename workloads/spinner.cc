// CPU threads that continuously count in pinned and registered host memory, like runtimes that
// communicate with the GPU through such memory. They never call the driver or wait for it. The
// program detects when this memory is removed or replaced by an older copy.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <array>
#include <atomic>
#include <thread>

#include "common/gpu.h"

namespace workloads {
namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr uint32_t kCount = 16 * 1024 + 5;

enum Kind : uint32_t { kPinned, kMapped, kRegistered, kKinds };

class Spinner : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    expected_ = RandomWords(700, kCount);
    on_device_ = DeviceArray<uint32_t>(expected_);
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      memory_[kind] = static_cast<uint64_t*>(Allocate(static_cast<Kind>(kind)));
      memset(memory_[kind], 0, kBytes);
      threads_[kind] = std::thread([this, kind] { Count(kind); });
    }
  }

  uint64_t Round(uint64_t round) override {
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      const uint64_t before = counts_[kind];
      while (counts_[kind] == before) Rest();
    }
    const auto salt = static_cast<uint32_t>(round);
    Launch(step_, GridFor(kCount), nullptr, on_device_.address(), kCount, salt);
    CU(cuCtxSynchronize());
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
    CU(cuMemFreeHost(memory_[kPinned]));
    CU(cuMemFreeHost(memory_[kMapped]));
    CU(cuMemHostUnregister(memory_[kRegistered]));
    munmap(memory_[kRegistered], kBytes);
    on_device_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  static void* Allocate(Kind kind) {
    void* memory = nullptr;
    if (kind == kPinned) {
      CU(cuMemAllocHost(&memory, kBytes));
    } else if (kind == kMapped) {
      CU(cuMemHostAlloc(&memory, kBytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    } else {
      memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) Fail("mmap: %s", strerror(errno));
      CU(cuMemHostRegister(memory, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    return memory;
  }

  static void Rest() {
    const timespec rest{0, 20000};
    nanosleep(&rest, nullptr);
  }

  // Visits every word in each turn. Only this thread writes the words, so each must have its value
  // of the previous turn.
  void Count(uint32_t kind) {
    static constexpr const char* kNames[kKinds] = {"pinned", "mapped", "registered"};
    volatile uint64_t* words = memory_[kind];
    constexpr size_t kWords = kBytes / sizeof(uint64_t);
    for (uint64_t turn = 1; !stop_; ++turn) {
      for (size_t i = 0; i < kWords; ++i) {
        const uint64_t found = words[i];
        if (found != turn - 1) {
          Fail("%s memory has %llu where %llu was written", kNames[kind],
               static_cast<unsigned long long>(found), static_cast<unsigned long long>(turn - 1));
        }
        words[i] = turn;
      }
      counts_[kind] = turn;
      // Leave the processor to other threads now and then; nothing waits for this thread.
      if (turn % 8 == 0) Rest();
    }
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  DeviceArray<uint32_t> on_device_;
  std::vector<uint32_t> expected_;
  std::array<uint64_t*, kKinds> memory_{};
  std::array<std::thread, kKinds> threads_;
  std::array<std::atomic<uint64_t>, kKinds> counts_{};
  std::atomic<bool> stop_{false};
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Spinner spinner;
  workloads::Run(spinner, options);
}
