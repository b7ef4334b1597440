#include "base/block_name.h"

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

// Computed by tests/image/read_image.py, which has the function from its description, in integers
// of any size.
TEST(BlockNameTest, AgreesWithTheDescription) {
  BlockKey key(CountingSecret());
  struct Row {
    std::string block;
    const char* name;
  };
  const Row rows[] = {
      {std::string("\x01", 1), "69c41ed8cfcc7664698d6cd7679910ad"},
      {std::string(4096, '\xff'), "622a07eba69a101c142d68a8c93b05de"},
      {Noise(10'000), "5bf5d22a66dbae691b01bf805ddbe0f0"},
      {std::string(kBlockBytes, '\xff'), "83890319fede9318142b7c7caebc69f7"},
  };
  for (const Row& row : rows) EXPECT_EQ(key.Name(row.block).Hex(), row.name);
  EXPECT_EQ(key.id().Hex(), "e28e7a863adb1154f8ddd8433ce7d256");
}

TEST(BlockNameTest, EveryBitAndTheLengthCount) {
  BlockKey key(CountingSecret());
  std::string block = Noise(8192 + 24);
  std::set<std::string> names = {key.Name(block).Hex()};
  size_t expected = 1;
  for (size_t i = 0; i < block.size(); i += 37) {
    block[i] ^= 1;
    names.insert(key.Name(block).Hex());
    block[i] ^= 1;
    ++expected;
  }
  // Zeros at the end change what the padding would be.
  for (size_t zeros : {1, 7, 8, 4096}) {
    names.insert(key.Name(block + std::string(zeros, '\0')).Hex());
    ++expected;
  }
  // Two pieces change places.
  names.insert(
      key.Name(block.substr(4096, 4096) + block.substr(0, 4096) + block.substr(8192)).Hex());
  EXPECT_EQ(names.size(), expected + 1);
}

TEST(BlockNameTest, AnotherKeyGivesOtherNames) {
  auto secret = BlockKey::RandomSecret();
  ASSERT_TRUE(secret);
  EXPECT_NE(BlockKey(*secret).Name("x"), BlockKey(CountingSecret()).Name("x"));
  EXPECT_NE(BlockKey(*secret).id(), BlockKey(CountingSecret()).id());
  EXPECT_EQ(BlockKey(*secret).Name("x"), BlockKey(*secret).Name("x"));
}

TEST(BlockNameTest, ZeroIsDecidedByLooking) {
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
