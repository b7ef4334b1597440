#include "base/block_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace stasis {
namespace {

// Bytes that do not repeat within a short distance.
std::string Noise(size_t size) {
  std::string data(size, '\0');
  uint32_t seed = 1;
  for (char& c : data) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return data;
}

BlockSecret CountingSecret() {
  BlockSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  return secret;
}

// Computed by tests/image/read_image.py, which implements the function from its description with
// integers of any size.
TEST(BlockHashTest, AgreesWithTheDescription) {
  BlockKey key(CountingSecret());
  struct Row {
    std::string block;
    const char* hash;
  };
  const Row rows[] = {
      {std::string("\x01", 1), "69c41ed8cfcc7664698d6cd7679910ad"},
      {std::string(4096, '\xff'), "622a07eba69a101c142d68a8c93b05de"},
      {Noise(10'000), "5bf5d22a66dbae691b01bf805ddbe0f0"},
      {std::string(kBlockBytes, '\xff'), "83890319fede9318142b7c7caebc69f7"},
  };
  for (const Row& row : rows) EXPECT_EQ(key.Hash(row.block).Hex(), row.hash);
  EXPECT_EQ(key.id().Hex(), "e28e7a863adb1154f8ddd8433ce7d256");
}

TEST(BlockHashTest, EveryBitAndTheLengthCount) {
  BlockKey key(CountingSecret());
  std::string block = Noise(8192 + 24);
  std::set<std::string> hashes = {key.Hash(block).Hex()};
  size_t expected = 1;
  for (size_t i = 0; i < block.size(); i += 37) {
    block[i] ^= 1;
    hashes.insert(key.Hash(block).Hex());
    block[i] ^= 1;
    ++expected;
  }
  // Appended zeros look like padding; the length, which is part of the hash, distinguishes them.
  for (size_t zeros : {1, 7, 8, 4096}) {
    hashes.insert(key.Hash(block + std::string(zeros, '\0')).Hex());
    ++expected;
  }
  // Two pieces are swapped.
  hashes.insert(
      key.Hash(block.substr(4096, 4096) + block.substr(0, 4096) + block.substr(8192)).Hex());
  EXPECT_EQ(hashes.size(), expected + 1);
}

TEST(BlockHashTest, AnotherKeyGivesOtherHashes) {
  auto secret = BlockKey::RandomSecret();
  ASSERT_TRUE(secret);
  EXPECT_NE(BlockKey(*secret).Hash("x"), BlockKey(CountingSecret()).Hash("x"));
  EXPECT_NE(BlockKey(*secret).id(), BlockKey(CountingSecret()).id());
  EXPECT_EQ(BlockKey(*secret).Hash("x"), BlockKey(*secret).Hash("x"));
}

TEST(BlockHashTest, ZeroIsDecidedByLooking) {
  std::string block(kBlockBytes, '\0');
  EXPECT_TRUE(IsAllZero(block));
  for (size_t i : {size_t{0}, size_t{1}, block.size() / 2, block.size() - 1}) {
    block[i] = 1;
    EXPECT_FALSE(IsAllZero(block)) << i;
    block[i] = 0;
  }
  EXPECT_TRUE(IsAllZero(""));
  EXPECT_TRUE(IsAllZero(std::string(1, '\0')));
}

}  // namespace
}  // namespace stasis
