// Stream-ordered memory from the device's default pool and from a separate pool. Each round frees
// the oldest block and allocates a new one in stream order, so a block lives for several rounds.
#include <array>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kLive = 6;
constexpr uint32_t kCount = 32 * 1024 + 11;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

struct Block {
  CUdeviceptr address = 0;
  std::vector<uint32_t> expected;
};

class Pool : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));

    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, options.device};
    CU(cuMemPoolCreate(&own_pool_, &properties));
    cuuint64_t keep_bytes = 64u << 20;
    CU(cuMemPoolSetAttribute(own_pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes));

    for (uint32_t b = 0; b < kLive; ++b) Allocate(b, b);
    CU(cuStreamSynchronize(stream_));
  }

  uint64_t Round(uint64_t round) override {
    const auto oldest = static_cast<uint32_t>(round % kLive);
    CU(cuMemFreeAsync(blocks_[oldest].address, stream_));
    Allocate(oldest, round + kLive);
    for (Block& block : blocks_) {
      const auto salt = static_cast<uint32_t>(round);
      Launch(step_, GridFor(kCount), stream_, block.address, kCount, salt);
      StepInPlace(block.expected, salt);
    }
    return CompareAll();
  }

  void Verify() override {
    CompareAll();
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(blocks_[3].address + kBytes - 1); }

  void TearDown() override {
    for (Block& block : blocks_) CU(cuMemFreeAsync(block.address, stream_));
    CU(cuStreamSynchronize(stream_));
    CU(cuMemPoolDestroy(own_pool_));
    CU(cuStreamDestroy(stream_));
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  // Even blocks come from the default pool, odd ones from the separate pool.
  void Allocate(uint32_t b, uint64_t seed) {
    Block& block = blocks_[b];
    if (b % 2 == 0) {
      CU(cuMemAllocAsync(&block.address, kBytes, stream_));
    } else {
      CU(cuMemAllocFromPoolAsync(&block.address, kBytes, own_pool_, stream_));
    }
    block.expected = RandomWords(600 + seed, kCount);
    CU(cuMemcpyHtoDAsync(block.address, block.expected.data(), kBytes, stream_));
    // Wait, because the caller changes the source next.
    CU(cuStreamSynchronize(stream_));
  }

  uint64_t CompareAll() {
    uint64_t sum = 0;
    for (Block& block : blocks_) {
      std::vector<uint32_t> found(kCount);
      CU(cuMemcpyDtoHAsync(found.data(), block.address, kBytes, stream_));
      CU(cuStreamSynchronize(stream_));
      Compare("a pool's block", found, block.expected);
      sum = Mix64(sum) + Checksum(found);
    }
    return sum;
  }

  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  CUstream stream_ = nullptr;
  CUmemoryPool own_pool_ = nullptr;
  std::array<Block, kLive> blocks_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Pool pool;
  workloads::Run(pool, options);
}
