// One process with contexts on two GPUs (--devices 2) that access each other's memory directly.
// Each round mixes an array on one GPU with that of the other, and copies between them. An array on
// each GPU is allocated after peer access was enabled, and reallocated every tenth round. With
// --devices 1 both contexts are on one GPU.
#include <array>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

// Large enough that the agent carries the arrays: it leaves allocations of less than 1 MiB to the
// driver.
constexpr uint32_t kCount = 512 * 1024 + 1;
constexpr uint64_t kLateEvery = 10;

class Peers : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    CU(cuDeviceGet(&sides_[1].device, options.device + options.devices - 1));
    sides_[0].device = Device();
    sides_[0].context = PrimaryContext();
    CU(cuCtxCreate(&sides_[1].context, 0, sides_[1].device));
    for (int s = 0; s < 2; ++s) {
      Side& side = sides_[s];
      CU(cuCtxSetCurrent(side.context));
      side.module = LoadModule("step");
      side.step = Function(side.module, "step");
      side.expected = RandomWords(700 + s, kCount);
      side.words = DeviceArray<uint32_t>(side.expected);
    }
    apart_ = sides_[0].device != sides_[1].device;
    for (int s = 0; apart_ && s < 2; ++s) {
      CU(cuCtxSetCurrent(sides_[s].context));
      CU(cuCtxEnablePeerAccess(sides_[1 - s].context, 0));
    }
    for (Side& side : sides_) {
      CU(cuCtxSetCurrent(side.context));
      side.late = DeviceArray<uint32_t>(kCount);
    }
  }

  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    uint64_t sum = 0;
    for (int s = 0; s < 2; ++s) {
      Side &mine = sides_[s], &theirs = sides_[1 - s];
      CU(cuCtxSetCurrent(mine.context));
      RequirePeerAccess(theirs);
      Launch(mine.step, GridFor(kCount), nullptr, mine.late.address(), mine.words.address(),
             theirs.words.address(), kCount, salt);
      mine.expected = StepWith(mine.expected, theirs.expected, salt);
      CU(cuMemcpyDtoD(mine.words.address(), mine.late.address(), mine.words.bytes()));
      CU(cuCtxSynchronize());
      const std::vector<uint32_t> found = mine.words.Read();
      Compare("the result of one GPU", found, mine.expected);
      sum = Mix64(sum) + Checksum(found);
      if (round % kLateEvery != 0) continue;
      mine.late.Free();
      mine.late = DeviceArray<uint32_t>(kCount);
    }
    return sum;
  }

  void Verify() override {
    for (Side& side : sides_) {
      CU(cuCtxSetCurrent(side.context));
      Compare("an array", side.words.Read(), side.expected);
    }
    CU(cuCtxSetCurrent(sides_[0].context));
    VerifyBallast();
  }

  void Sabotage() override {
    CU(cuCtxSetCurrent(sides_[1].context));
    FlipByte(sides_[1].words.address() + 9);
  }

  void TearDown() override {
    for (Side& side : sides_) {
      CU(cuCtxSetCurrent(side.context));
      side.words.Free();
      side.late.Free();
      CU(cuModuleUnload(side.module));
    }
    CU(cuCtxDestroy(sides_[1].context));
    CU(cuCtxSetCurrent(sides_[0].context));
    CloseGpu();
  }

 private:
  struct Side {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction step = nullptr;
    DeviceArray<uint32_t> words, late;
    std::vector<uint32_t> expected;
  };

  // On a real GPU a kernel without peer access would fault. There, cuMemGetAccess reports 0 for
  // memory of cuMemAlloc. On softgpu kernels do not fault, so the access is queried instead.
  void RequirePeerAccess(const Side& theirs) {
    if (!OnSoftgpu()) return;
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, OtherThan(theirs)};
    for (const DeviceArray<uint32_t>* array : {&theirs.words, &theirs.late}) {
      unsigned long long flags = 0;
      if (cuMemGetAccess(&flags, &location, array->address()) != CUDA_SUCCESS) continue;
      if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) Fail("peer access is gone: %llu", flags);
    }
  }
  CUdevice OtherThan(const Side& side) const { return sides_[&side == &sides_[0] ? 1 : 0].device; }

  std::array<Side, 2> sides_;
  bool apart_ = false;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Peers peers;
  workloads::Run(peers, options);
}
