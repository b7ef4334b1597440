#include "store/codec.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cstring>

#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::Noise;

// Returns noise in which half of the bytes are zero, as in many tensors.
std::string HalfNoise(size_t size) {
  std::string data = Noise(size);
  for (size_t i = 0; i < size; ++i) data[i] = i % 32 < 16 ? '\0' : data[i];
  return data;
}

std::string Compressed(Codec codec, const std::string& block) {
  std::string out(block.size(), '\0');
  out.resize(Compress(codec, block, out.data(), out.size()));
  return out;
}

class CodecTest : public ::testing::TestWithParam<Codec> {};

TEST_P(CodecTest, CompressedDataIsReadBack) {
  for (size_t size : {size_t{4096}, size_t{100'000}, size_t{2} << 20}) {
    std::string block = HalfNoise(size);
    std::string stored = Compressed(GetParam(), block);
    ASSERT_FALSE(stored.empty());
    ASSERT_LT(stored.size(), size * 9 / 10);
    std::string back(size, 'x');
    auto status = Decompress(GetParam(), stored, back.data(), size);
    ASSERT_TRUE(status) << status.error().ToString();
    EXPECT_TRUE(back == block);
  }
}

TEST_P(CodecTest, DataThatDoesNotFitIsNotCompressed) {
  std::string block = Noise(100'000);
  std::string out(100'000 - 100'000 / 16, '\0');
  EXPECT_EQ(Compress(GetParam(), block, out.data(), out.size()), 0u);
  block = HalfNoise(100'000);
  EXPECT_EQ(Compress(GetParam(), block, out.data(), 10), 0u);
}

TEST_P(CodecTest, AnotherLengthIsRefused) {
  std::string block = HalfNoise(50'000);
  std::string stored = Compressed(GetParam(), block);
  std::string out(60'000, 'x');
  for (size_t size : {size_t{0}, size_t{1}, size_t{49'999}, size_t{50'001}, size_t{60'000}}) {
    auto status = Decompress(GetParam(), stored, out.data(), size);
    ASSERT_FALSE(status) << size;
    EXPECT_EQ(status.error().code, Code::kDataLoss);
  }
  EXPECT_FALSE(Decompress(GetParam(), stored + "x", out.data(), block.size()));
  EXPECT_FALSE(Decompress(GetParam(), "", out.data(), block.size()));
}

// A stream that was forged, or damaged before its checksum was computed, is either rejected or
// decompresses to exactly the block's length. The address sanitizer detects accesses outside of the
// block.
TEST_P(CodecTest, CorruptedStreamsStayInsideTheirBlock) {
  constexpr size_t kSize = 20'000;
  constexpr size_t kGuard = 64;
  const std::string stored = Compressed(GetParam(), HalfNoise(kSize));
  std::string out(kSize + kGuard, '\0');
  uint32_t seed = 1;
  auto random = [&](size_t below) {
    seed = seed * 1664525 + 1013904223;
    return static_cast<size_t>((uint64_t{seed} * below) >> 32);
  };
  size_t refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bad = stored;
    // The first bytes contain the lengths of a frame.
    for (size_t n = 1 + random(3); n > 0; --n) {
      bad[random(round % 2 == 0 ? 16 : bad.size())] = static_cast<char>(random(256));
    }
    if (round % 5 == 0) bad.resize(random(bad.size()));
    out.assign(kSize + kGuard, '\x5a');
    if (!Decompress(GetParam(), bad, out.data(), kSize)) ++refused;
    ASSERT_EQ(out.substr(kSize), std::string(kGuard, '\x5a')) << "round " << round;
  }
  EXPECT_GT(refused, 1000u);
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest, ::testing::Values(Codec::kLz4, Codec::kZstd),
                         [](const auto& codec) { return CodecName(codec.param); });

// The frame claims a window of gigabytes and a size larger than the block.
TEST(CodecTest, NothingIsAllocatedForTheSizeThatAFrameClaims) {
  std::string huge(64 << 20, '\0');
  std::string stored(1 << 20, '\0');
  size_t size = ::ZSTD_compress(stored.data(), stored.size(), huge.data(), huge.size(), 19);
  ASSERT_FALSE(::ZSTD_isError(size));
  stored.resize(size);
  std::string out(2 << 20, 'x');
  auto status = Decompress(Codec::kZstd, stored, out.data(), out.size());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDataLoss);
}

TEST(CodecTest, CompressionNamesAreParsed) {
  EXPECT_EQ(*ParseCompression("none"), Compression::kNone);
  EXPECT_EQ(*ParseCompression("auto"), Compression::kAuto);
  auto bad = ParseCompression("brotli");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace stasis::store
