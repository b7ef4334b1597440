#include "dataplane/arena_record.h"

#include <gtest/gtest.h>

#include "base/checksum.h"

namespace stasis::dataplane {
namespace {

ArenaRecord Example() {
  ArenaRecord record;
  record.key = {{{4711}, 123456}, {"GPU-01234567-89ab-cdef-0123-456789abcdef"}};
  record.owner = 1000;
  record.boot_id = "0f0e0d0c-1234-5678-9abc-def012345678";
  record.pid_namespace = 4026531836;
  record.complete = true;
  record.ranges = {{0x7f0000000000, 4096}, {0x7f1000000000, 8192}};
  record.data_bytes = *LayOut(record.ranges);
  return record;
}

TEST(ArenaRecord, ComesBackAsItWas) {
  ArenaRecord record = Example();
  EXPECT_EQ(*DecodeArenaRecord(Encode(record)), record);
  record.has_checksum = true;
  record.checksum = Checksum("x");
  record.complete = false;
  record.ranges.clear();
  record.data_bytes = 0;
  EXPECT_EQ(*DecodeArenaRecord(Encode(record)), record);
}

ArenaRecord WithHashes() {
  ArenaRecord record = Example();
  record.hashes = ArenaHashes{Checksum("key"), {Checksum("a"), {}}};
  return record;
}

TEST(ArenaRecord, HashesComeWithIt) {
  const ArenaRecord record = WithHashes();
  EXPECT_EQ(*DecodeArenaRecord(Encode(record)), record);
  EXPECT_EQ(record.hashes->Zeros(), (std::vector<uint8_t>{0, 1}));
  // One range too many, with a correct checksum.
  ArenaRecord wrong = record;
  wrong.hashes->blocks.push_back(Checksum("b"));
  EXPECT_FALSE(DecodeArenaRecord(Encode(wrong)));
  wrong.hashes->blocks.resize(1);
  EXPECT_FALSE(DecodeArenaRecord(Encode(wrong)));
}

TEST(ArenaRecord, EveryDamagedByteIsSeen) {
  const std::string good = Encode(WithHashes());
  for (size_t i = 0; i < good.size(); ++i) {
    for (unsigned char flip : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      auto decoded = DecodeArenaRecord(bad);
      ASSERT_FALSE(decoded) << "byte " << i;
      EXPECT_EQ(decoded.error().code, Code::kDataLoss);
    }
  }
}

TEST(ArenaRecord, EveryLengthButTheRightOneIsRefused) {
  for (const std::string& good : {Encode(Example()), Encode(WithHashes())}) {
    for (size_t size = 0; size < good.size(); ++size) {
      EXPECT_FALSE(DecodeArenaRecord(std::string_view(good).substr(0, size))) << size;
    }
    EXPECT_FALSE(DecodeArenaRecord(good + '\0'));
  }
}

// A correct checksum does not make invalid numbers acceptable.
TEST(ArenaRecord, ImpossibleNumbersAreRefused) {
  auto resealed = [](size_t at, uint64_t value, size_t bytes) {
    std::string data = Encode(Example());
    data.resize(data.size() - 16);
    data.replace(at, bytes, reinterpret_cast<const char*>(&value), bytes);
    data.append(Checksum(data).View());
    return DecodeArenaRecord(data);
  };
  EXPECT_TRUE(resealed(144, 2, 4));
  for (uint64_t count : {0ull, 1ull, 3ull, 0xffffffffull}) EXPECT_FALSE(resealed(144, count, 4));
  EXPECT_FALSE(resealed(8, 2, 4)) << "version";
  EXPECT_FALSE(resealed(56 + 39, 'x', 1)) << "something behind the end of a text";
  EXPECT_FALSE(resealed(152 + 8, 0, 8)) << "a size of zero";
  EXPECT_FALSE(resealed(152 + 16, 1ull << 50, 8)) << "an offset outside";
  EXPECT_FALSE(resealed(152 + 24, 4097, 8)) << "more stored than there is";
  EXPECT_FALSE(resealed(32, 100, 8)) << "fewer bytes than the ranges need";
}

}  // namespace
}  // namespace stasis::dataplane
