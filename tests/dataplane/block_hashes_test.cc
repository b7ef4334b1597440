// Compares the kernel that hashes blocks with the CPU's function: all hashes must be equal.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "base/block_hash.h"
#include "dataplane/block_hasher.h"
#include "dataplane/changed_blocks.h"
#include "dataplane/prefault.h"
#include "driver_agent.h"

namespace stasis::dataplane::testing {
namespace {

std::string Random(size_t bytes, uint64_t seed) {
  std::mt19937_64 numbers(seed);
  std::string data(bytes, '\0');
  for (char& c : data) c = static_cast<char>(numbers());
  return data;
}

// The driver in this process, with the memory to hash.
class BlockHashesTest : public DataplaneTest {
 protected:
  void SetUp() override {
    DataplaneTest::SetUp();
    auto gpu = Gpu::Open(DriverPath(), Gpus()[0].uuid);
    ASSERT_DONE(gpu);
    gpu_ = std::move(*gpu);
    hasher_ = std::make_unique<BlockHasher>(*gpu_);
    ASSERT_EQ(gpu_->fn().cuMemAlloc_v2(&memory_, kMemory), cuda::CUDA_SUCCESS);
  }
  void TearDown() override {
    if (memory_ != 0) gpu_->fn().cuMemFree_v2(memory_);
    DataplaneTest::TearDown();
  }

  void Put(std::string_view data) {
    cuda::CUstream stream = nullptr;
    // Bytes after the end must not affect the hash.
    ASSERT_EQ(gpu_->fn().cuMemsetD8Async(memory_, 0xa5, kMemory, stream), cuda::CUDA_SUCCESS);
    ASSERT_EQ(gpu_->fn().cuMemcpyHtoDAsync_v2(memory_, data.data(), data.size(), stream),
              cuda::CUDA_SUCCESS);
    ASSERT_EQ(gpu_->fn().cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
  }

  void ExpectSame(const BlockKey& key, const std::string& data) {
    Put(data);
    auto found = hasher_->Hash(memory_, {{0, data.size(), 0, 0}});
    ASSERT_DONE(found);
    ASSERT_EQ(found->hashes.size(), (data.size() + kBlockBytes - 1) / kBlockBytes);
    uint64_t zero_bytes = 0;
    for (size_t i = 0; i < found->hashes.size(); ++i) {
      const std::string_view block =
          std::string_view(data).substr(i * kBlockBytes, uint64_t{kBlockBytes});
      const bool zero = IsAllZero(block);
      zero_bytes += zero ? block.size() : 0;
      EXPECT_EQ(found->hashes[i].Hex(), zero ? Id128{}.Hex() : key.Hash(block).Hex())
          << "block " << i << " of " << data.size() << " bytes";
    }
    EXPECT_EQ(found->zero_bytes, zero_bytes);
  }

  static constexpr uint64_t kMemory = 8 * kMib;
  std::optional<Gpu> gpu_;
  std::unique_ptr<BlockHasher> hasher_;
  cuda::CUdeviceptr memory_ = 0;
};

TEST_F(BlockHashesTest, EqualThoseOfTheCpu) {
  constexpr size_t kPiece = kBlockPieceBytes;
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
    ASSERT_DONE(hasher_->Prepare(key));
    for (size_t size : sizes) {
      ExpectSame(key, Random(size, size + seed));
      // The largest possible sums.
      ExpectSame(key, std::string(size, '\xff'));
    }
  }
}

TEST_F(BlockHashesTest, ZeroBlocksAreDetected) {
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  const BlockKey key(*secret);
  ASSERT_DONE(hasher_->Prepare(key));
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

TEST_F(BlockHashesTest, NeedAKeyAndDropIt) {
  EXPECT_REFUSED(Code::kFailedPrecondition, hasher_->Hash(memory_, {{0, kMib, 0, 0}}));
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  ASSERT_DONE(hasher_->Prepare(BlockKey(*secret)));
  EXPECT_DONE(hasher_->Hash(memory_, {{0, kMib, 0, 0}}));
  ASSERT_DONE(hasher_->Forget());
  EXPECT_REFUSED(Code::kFailedPrecondition, hasher_->Hash(memory_, {{0, kMib, 0, 0}}));
}

// The list of blocks is uploaded while the kernel is launched.
TEST_F(BlockHashesTest, WaitForTheirTasks) {
  if (!OnSoftgpu()) GTEST_SKIP() << "a real driver cannot be told to be late";
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  const BlockKey key(*secret);
  const std::string first = Random(5000, 1), second = Random(70000, 2);
  ASSERT_DONE(hasher_->Prepare(key));
  ExpectSame(key, first);
  Put(second);
  Fault(::getpid(), "cuMemcpyHtoDAsync_v2=late(200),cuMemcpyHtoD_v2=late(200)");
  auto found = hasher_->Hash(memory_, {{0, second.size(), 0, 0}});
  const auto other = BlockKey::RandomSecret();
  ASSERT_DONE(other);
  const BlockKey other_key(*other);
  EXPECT_DONE(hasher_->Prepare(other_key));
  auto by_other = hasher_->Hash(memory_, {{0, second.size(), 0, 0}});
  Fault(::getpid(), "");
  ASSERT_DONE(found);
  EXPECT_EQ(found->hashes[0].Hex(), key.Hash(second).Hex());
  ASSERT_DONE(by_other);
  EXPECT_EQ(by_other->hashes[0].Hex(), other_key.Hash(second).Hex());
}

// More blocks than fit into one round; later ones must not overwrite the first ones.
TEST_F(BlockHashesTest, WorkOverManyRounds) {
  constexpr size_t kRound = 24, kBlocks = 2 * kRound + 5;
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  const BlockKey key(*secret);
  BlockHasher hasher(*gpu_, kRound);
  ASSERT_DONE(hasher.Prepare(key));
  const std::string data = Random(kBlocks * 32, 3);
  Put(data);
  std::vector<Block> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.push_back({i * 32, 0, 17 + i % 16, i});
  // A portion as large as a round, several portions per round, and single blocks with a larger last
  // portion.
  for (size_t first : {kRound, size_t{3}, size_t{1}}) {
    ASSERT_DONE(hasher.Begin(memory_, blocks, first));
    for (size_t i = 0; i < kBlocks; ++i) {
      auto hash = hasher.HashOf(i);
      ASSERT_DONE(hash);
      ASSERT_EQ(hash->Hex(), key.Hash(std::string_view(data).substr(i * 32, 17 + i % 16)).Hex())
          << i;
    }
    EXPECT_REFUSED(Code::kInternal, hasher.HashOf(kBlocks));
    EXPECT_DONE(hasher.End());
  }
}

// Ranges of odd sizes, with a different order in the arena: exactly the blocks that are neither
// zero nor known are copied, each byte once.
TEST_F(BlockHashesTest, DecideWhatIsCopied) {
  constexpr uint64_t kChunk = 3 * kMib;
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  const BlockKey key(*secret);
  ASSERT_DONE(hasher_->Prepare(key));
  std::vector<Range> ranges = {{0, 3 * kMib + 16, 4 * kMib + 4096, 3 * kMib + 16},
                               {0, 48, 0, 48},
                               {0, 4 * kMib - 32, 48, 4 * kMib - 32}};
  uint64_t total = 0;
  for (const Range& range : ranges) total += range.size_bytes;
  // Blocks: two of the first range, one of the second, two of the third.
  const std::vector<std::pair<uint64_t, uint64_t>> blocks = {{0, 2 * kMib},
                                                             {2 * kMib, kMib + 16},
                                                             {3 * kMib + 16, 48},
                                                             {3 * kMib + 64, 2 * kMib},
                                                             {5 * kMib + 64, 2 * kMib - 32}};
  const std::string random = Random(total, 4);
  for (unsigned choice = 0; choice < 3 * 3 * 3 * 3 * 3; choice += 11) {
    SCOPED_TRACE(choice);
    std::string data = random;
    std::vector<Id128> known(blocks.size());
    std::string copied(total, 0);
    uint64_t zero_bytes = 0, left_out = 0;
    for (size_t i = 0, rest = choice; i < blocks.size(); ++i, rest /= 3) {
      const auto [at, bytes] = blocks[i];
      if (rest % 3 == 0) std::memset(data.data() + at, 0, bytes);
      if (rest % 3 == 1) known[i] = key.Hash(std::string_view(data).substr(at, bytes));
      if (rest % 3 == 2) known[i] = key.Hash("something else");
      if (rest % 3 == 2) std::memset(copied.data() + at, 1, bytes);
      zero_bytes += rest % 3 == 0 ? bytes : 0;
      left_out += rest % 3 != 2 ? bytes : 0;
    }
    Put(data);
    ChangedBlocks changed(*hasher_, ranges, known, kChunk);
    ASSERT_DONE(changed.Begin(memory_));
    uint64_t last_chunk = 0, last_end = 0;
    for (bool first = true;; first = false) {
      auto group = changed.Next();
      ASSERT_DONE(group);
      if (!*group) break;
      EXPECT_TRUE(first || (*group)->chunk > last_chunk);
      last_chunk = (*group)->chunk;
      for (const Piece& piece : (*group)->pieces) {
        EXPECT_GE(piece.arena_offset, last_end);
        last_end = piece.arena_offset + piece.bytes;
        EXPECT_EQ(piece.arena_offset / kChunk, last_chunk);
        EXPECT_EQ((last_end - 1) / kChunk, last_chunk);
        EXPECT_TRUE(copied.substr(piece.device_offset, piece.bytes) == std::string(piece.bytes, 1));
        std::memset(copied.data() + piece.device_offset, 0, piece.bytes);
      }
    }
    EXPECT_DONE(changed.End());
    EXPECT_TRUE(copied == std::string(total, 0)) << "something was left out";
    EXPECT_EQ(changed.zero_bytes(), zero_bytes);
    EXPECT_EQ(changed.left_out_bytes(), left_out);
  }
}

TEST_F(BlockHashesTest, AreReturnedByASave) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({2 * kMib, 32 * kMib, 6 * kMib}, 4);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  const auto secret = BlockKey::RandomSecret();
  ASSERT_DONE(secret);
  ASSERT_DONE(mover.PrepareHashes(*secret, Soon()));
  auto fds = agent.Export();
  agent.Release();
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  CopyOptions options;
  options.hashes = true;
  auto saved = mover.Save(arena->record().ranges, Raw(fds), options, Soon());
  ASSERT_DONE(saved);
  ASSERT_EQ(saved->hashes.size(), 20u);
  auto mapping = Mapping::Map(arena->fd(), 40 * kMib);
  ASSERT_DONE(mapping);
  const BlockKey key(*secret);
  for (size_t i = 0; i < 20; ++i) {
    const std::string_view block(mapping->data() + i * kBlockBytes, kBlockBytes);
    EXPECT_EQ(saved->hashes[i].Hex(), key.Hash(block).Hex()) << i;
  }
}

// 32 blocks on each GPU, in chunks of two, with zero, known and changed blocks on both sides of the
// boundaries of chunks and of portions (2, 8 and 22 blocks).
class Pipeline : public DataplaneTest {
 protected:
  static constexpr size_t kBlocks = 32;
  static constexpr size_t kZero[] = {1, 4, 9, 10, 20, 21, 22, 31};
  static constexpr size_t kChanged[] = {0, 2, 3, 8, 11, 23, 30};

  struct Program {
    explicit Program(int ordinal) : agent(ordinal) {}
    DriverAgent agent;
    std::optional<Arena> arena;
    std::vector<std::string> blocks;
    CopyOptions options;
    std::vector<UniqueFd> fds;
  };

  void SetUp() override {
    DataplaneTest::SetUp();
    if (!OnSoftgpu()) GTEST_SKIP() << "a real driver cannot be told to be late";
    auto secret = BlockKey::RandomSecret();
    ASSERT_DONE(secret);
    secret_ = *secret;
    store_ = OpenStore();
  }

  // The arena has other data, with hashes that are correct for all but the changed blocks.
  void Make(Program& program, Mover& mover, int ordinal) {
    program.agent.Create({6 * kMib, 30 * kMib, 2 * kMib, 26 * kMib}, 5);
    for (size_t i : kZero) program.agent.Clear(i * kBlockBytes, kBlockBytes);
    const BlockKey key(secret_);
    for (size_t i = 0; i < kBlocks; ++i) {
      program.blocks.push_back(program.agent.Read(i * kBlockBytes, kBlockBytes));
      program.options.known.push_back(key.Hash(program.blocks[i]));
    }
    for (size_t i : kChanged) program.options.known[i] = key.Hash("another");
    program.options.hashes = true;
    auto arena = store_->Acquire(KeyOf(ordinal), ::getuid(), program.agent.ranges());
    ASSERT_DONE(arena);
    program.arena = std::move(*arena);
    auto mapping = Mapping::Map(program.arena->fd(), kBlocks * kBlockBytes);
    ASSERT_DONE(mapping);
    std::memset(mapping->data(), 0xa5, mapping->bytes());
    ASSERT_DONE(mover.PrepareHashes(secret_, Soon()));
    ASSERT_DONE(mover.Attach(*program.arena, Soon()));
    ASSERT_DONE(mover.Warm(kBlocks * kBlockBytes, {}, Soon()));
    program.fds = program.agent.Export();
    program.agent.Release();
  }

  void Expect(const Program& program, const CopyResult& saved) {
    const BlockKey key(secret_);
    auto mapping = Mapping::Map(program.arena->fd(), kBlocks * kBlockBytes);
    ASSERT_DONE(mapping);
    const std::string other(kBlockBytes, '\xa5');
    for (size_t i = 0; i < kBlocks; ++i) {
      const bool changed =
          std::find(std::begin(kChanged), std::end(kChanged), i) != std::end(kChanged);
      const std::string_view there(mapping->data() + i * kBlockBytes, kBlockBytes);
      EXPECT_TRUE(there == (changed ? program.blocks[i] : other)) << i;
      const bool zero = IsAllZero(program.blocks[i]);
      EXPECT_EQ(saved.hashes[i].Hex(), zero ? Id128{}.Hex() : key.Hash(program.blocks[i]).Hex());
    }
    EXPECT_EQ(saved.copied_bytes, std::size(kChanged) * kBlockBytes);
    EXPECT_EQ(saved.zero_bytes, std::size(kZero) * kBlockBytes);
  }

  BlockSecret secret_;
  std::optional<ArenaStore> store_;
};

TEST_F(Pipeline, HashedBlocksAreCopiedWhileOthersAreHashed) {
  constexpr double kLate = 1.5;
  std::vector<std::unique_ptr<Mover>> movers;
  std::vector<std::unique_ptr<Program>> programs;
  for (int gpu = 0; gpu < 2; ++gpu) {
    movers.push_back(std::make_unique<Mover>(OptionsFor(gpu)));
    programs.push_back(std::make_unique<Program>(gpu));
    Make(*programs.back(), *movers.back(), gpu);
    ASSERT_FALSE(HasFatalFailure());
    Fault(movers.back()->pid(), "cuLaunchKernel:2=late(1500)");
  }
  std::vector<std::thread> threads;
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    threads.emplace_back([&, gpu] {
      Program& program = *programs[gpu];
      auto saved = movers[gpu]->Save(program.arena->record().ranges, Raw(program.fds),
                                     program.options, Soon());
      ASSERT_DONE(saved);
      EXPECT_GE(saved->hashing_s, kLate) << "it was not late";
      EXPECT_LT(saved->until_first_s, kLate / 2);
      EXPECT_GE(saved->seconds, kLate);
      Expect(program, *saved);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(Pipeline, ALaunchThatFailsInTheMiddleLeavesTheProgramItsMemory) {
  Mover mover(OptionsFor(0));
  Program program(0);
  Make(program, mover, 0);
  ASSERT_FALSE(HasFatalFailure());
  const pid_t first = mover.pid();
  const auto save = [&] {
    return mover.Save(program.arena->record().ranges, Raw(program.fds), program.options, Soon());
  };
  Fault(first, "cuLaunchKernel:2=fail(2),cuLaunchKernel:1=late(300)");
  EXPECT_REFUSED(Code::kResourceExhausted, save());
  EXPECT_EQ(mover.pid(), first);
  Fault(first, "cuEventSynchronize:2=fail(700)");
  EXPECT_REFUSED(Code::kInternal, save());
  EXPECT_EQ(mover.pid(), 0) << "that context is broken";
  program.agent.TakeBack(program.fds);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(program.agent.Read(i * kBlockBytes, kBlockBytes) == program.blocks[i]) << i;
  }
  program.agent.Release();
  ASSERT_DONE(mover.PrepareHashes(secret_, Soon()));
  ASSERT_DONE(mover.Attach(*program.arena, Soon()));
  EXPECT_DONE(save());
}

TEST_F(BlockHashesTest, AreMeasured) {
  Mover mover(OptionsFor(0));
  auto speed = mover.MeasureHashing(64 * kMib, Soon());
  ASSERT_DONE(speed);
  EXPECT_EQ(speed->bytes, 64 * kMib);
  EXPECT_GT(speed->bytes_per_s, 0);
}

}  // namespace
}  // namespace stasis::dataplane::testing
