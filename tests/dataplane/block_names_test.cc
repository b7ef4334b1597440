// The kernel that names blocks, beside the processor's own function: every name is the same.
#include <random>

#include "dataplane/block_namer.h"
#include "dataplane/prefault.h"
#include "driver_agent.h"
#include "image/limits.h"

namespace stasis::dataplane::testing {
namespace {

using image::BlockKey;
using image::kBlockBytes;

constexpr uint64_t kMib = 1u << 20;

std::string Random(size_t bytes, uint64_t seed) {
  std::mt19937_64 numbers(seed);
  std::string data(bytes, '\0');
  for (char& c : data) c = static_cast<char>(numbers());
  return data;
}

// The driver in this process, with the memory to name.
class BlockNamesTest : public DataplaneTest {
 protected:
  void SetUp() override {
    DataplaneTest::SetUp();
    auto gpu = Gpu::Open(DriverPath(), Gpus()[0].uuid);
    ASSERT_DONE(gpu);
    gpu_ = std::move(*gpu);
    namer_ = std::make_unique<BlockNamer>(*gpu_);
    ASSERT_EQ(gpu_->fn().cuMemAlloc_v2(&memory_, kMemory), cuda::CUDA_SUCCESS);
  }
  void TearDown() override {
    if (memory_ != 0) gpu_->fn().cuMemFree_v2(memory_);
    DataplaneTest::TearDown();
  }

  void Put(std::string_view data) {
    cuda::CUstream stream = nullptr;
    // What lies behind the end must not count.
    ASSERT_EQ(gpu_->fn().cuMemsetD8Async(memory_, 0xa5, kMemory, stream), cuda::CUDA_SUCCESS);
    ASSERT_EQ(gpu_->fn().cuMemcpyHtoDAsync_v2(memory_, data.data(), data.size(), stream),
              cuda::CUDA_SUCCESS);
    ASSERT_EQ(gpu_->fn().cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
  }

  void ExpectSame(const BlockKey& key, const std::string& data) {
    Put(data);
    auto found = namer_->Name(memory_, {{0, data.size(), 0, 0}});
    ASSERT_DONE(found);
    ASSERT_EQ(found->names.size(), (data.size() + kBlockBytes - 1) / kBlockBytes);
    uint64_t zero_bytes = 0;
    for (size_t i = 0; i < found->names.size(); ++i) {
      const std::string_view block =
          std::string_view(data).substr(i * kBlockBytes, uint64_t{kBlockBytes});
      const bool zero = image::IsAllZero(block);
      zero_bytes += zero ? block.size() : 0;
      EXPECT_EQ(found->names[i].Hex(), zero ? image::Id128{}.Hex() : key.Name(block).Hex())
          << "block " << i << " of " << data.size() << " bytes";
    }
    EXPECT_EQ(found->zero_bytes, zero_bytes);
  }

  static constexpr uint64_t kMemory = 8 * kMib;
  std::optional<Gpu> gpu_;
  std::unique_ptr<BlockNamer> namer_;
  cuda::CUdeviceptr memory_ = 0;
};

TEST_F(BlockNamesTest, AreThoseOfTheProcessor) {
  constexpr size_t kPiece = image::kBlockPieceBytes;
  const size_t sizes[] = {1,
                          7,
                          8,
                          15,
                          16,
                          17,
                          31,
                          4095,
                          kPiece,
                          kPiece + 1,
                          2 * kPiece,
                          3 * kPiece,
                          4 * kPiece,
                          5 * kPiece,
                          6 * kPiece + 9,
                          7 * kPiece,
                          2 * kMib - 1,
                          2 * kMib,
                          2 * kMib + 1,
                          5 * kMib + 4321};
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const auto secret = BlockKey::RandomSecret();
    ASSERT_DONE(secret);
    const BlockKey key(*secret);
    ASSERT_DONE(namer_->Prepare(key));
    for (size_t size : sizes) {
      ExpectSame(key, Random(size, size + seed));
      // The largest sums that there are.
      ExpectSame(key, std::string(size, '\xff'));
    }
  }
}

TEST_F(BlockNamesTest, ZeroIsSeenByLooking) {
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  const BlockKey key(*secret);
  ASSERT_DONE(namer_->Prepare(key));
  for (size_t size : {size_t{1}, size_t{5000}, size_t{2 * kMib}, size_t{4 * kMib + 3}}) {
    std::string data(size, '\0');
    ExpectSame(key, data);
    for (size_t at : {size_t{0}, size / 2, size - 1}) {
      data[at] = 1;
      ExpectSame(key, data);
      data[at] = 0;
    }
  }
}

TEST_F(BlockNamesTest, NeedAKeyAndForgetIt) {
  EXPECT_REFUSED(Code::kFailedPrecondition, namer_->Name(memory_, {{0, kMib, 0, 0}}));
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  ASSERT_DONE(namer_->Prepare(BlockKey(*secret)));
  EXPECT_DONE(namer_->Name(memory_, {{0, kMib, 0, 0}}));
  ASSERT_DONE(namer_->Forget());
  EXPECT_REFUSED(Code::kFailedPrecondition, namer_->Name(memory_, {{0, kMib, 0, 0}}));
}

TEST_F(BlockNamesTest, ComeWithASave) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({2 * kMib, 32 * kMib, 6 * kMib}, 4);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  ASSERT_DONE(mover.PrepareNames(*secret, Soon()));
  auto fds = agent.Export();
  agent.Release();
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  CopyOptions options;
  options.names = true;
  auto saved = mover.Save(arena->record().ranges, Raw(fds), options, Soon());
  ASSERT_DONE(saved);
  ASSERT_EQ(saved->names.size(), 20u);
  auto mapping = Mapping::Map(arena->fd(), 40 * kMib);
  ASSERT_DONE(mapping);
  const BlockKey key(*secret);
  for (size_t i = 0; i < 20; ++i) {
    const std::string_view block(mapping->data() + i * kBlockBytes, kBlockBytes);
    EXPECT_EQ(saved->names[i].Hex(), key.Name(block).Hex()) << i;
  }
}

TEST_F(BlockNamesTest, AreMeasured) {
  Mover mover(OptionsFor(0));
  auto speed = mover.MeasureNaming(64 * kMib, Soon());
  ASSERT_DONE(speed);
  EXPECT_EQ(speed->bytes, 64 * kMib);
  EXPECT_GT(speed->bytes_per_s, 0);
}

}  // namespace
}  // namespace stasis::dataplane::testing
