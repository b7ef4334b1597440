// Reads units without a check, as for a GPU that checks them by their names.
#include "store/unit_reader.h"

#include <cstring>

#include "store/shared_units_testing.h"

namespace stasis::store {
namespace {

using testing::kBlock;
using testing::kBlocks;
using testing::Key;
using testing::Memory;

class UncheckedUnits : public testing::SharedUnitsTest {
 protected:
  // Reads the only range of an image. Bytes that no part covers are '?'.
  Result<std::string> ReadItems(const UnitReader& units, uint64_t bytes) const {
    std::string memory(bytes, '?');
    std::string buffer(UnitJobs::kJobBytes, 'x');
    for (size_t item = 0; item < units.items(); ++item) {
      std::vector<UnitJobs::Part> parts;
      STASIS_TRY(units.ReadItem(item, buffer.data(), parts));
      for (const auto& part : parts) {
        EXPECT_EQ(part.to.output, 0u);
        char* to = memory.data() + part.to.at;
        if (part.zero) {
          std::memset(to, 0, part.bytes);
        } else {
          std::memcpy(to, buffer.data() + part.buffer_offset, part.bytes);
        }
      }
    }
    return memory;
  }
  static std::vector<Id128> NamesOf(const std::string& memory) {
    std::vector<Id128> names;
    for (size_t at = 0; at < memory.size(); at += kBlock) {
      const auto block = std::string_view(memory).substr(at, kBlock);
      names.push_back(IsAllZero(block) ? Id128{} : *Key().NameOf(block));
    }
    return names;
  }
  void OpenUnits(const std::string& name) {
    auto reader = ImageReader::Open(store_ / name);
    ASSERT_TRUE(reader) << reader.error().ToString();
    reader_ = std::move(*reader);
    auto units = UnitReader::Open(*reader_, {{0}, false, true});
    ASSERT_TRUE(units) << units.error().ToString();
    units_.emplace(std::move(*units));
  }
  std::string PackPath() const {
    return store_ / "one/" + reader_->manifest().packs.front().path();
  }

  std::unique_ptr<ImageReader> reader_;
  std::optional<UnitReader> units_;
};

// A memory with zero blocks, a block that is there three times, and a short last block.
std::string Mixed() {
  std::string memory = Memory(1);
  memory.replace(10 * kBlock, 3 * kBlock, std::string(3 * kBlock, '\0'));
  for (const size_t i : {40, 70}) memory.replace(i * kBlock, kBlock, memory, kBlock, kBlock);
  return memory + std::string(100, 'e');
}

TEST_F(UncheckedUnits, AreThoseOfTheImage) {
  for (const char* how : {"none", "lz4", "zstd"}) {
    SCOPED_TRACE(how);
    std::string memory = Mixed();
    // Half of each block can be compressed.
    for (size_t i = 20; i < 60; ++i) {
      memory.replace(i * kBlock, kBlock / 2, std::string(kBlock / 2, static_cast<char>('a' + i)));
    }
    WriteOptions options = Options();
    options.compression = *ParseCompression(how);
    Dump(how, memory, options);
    ASSERT_NO_FATAL_FAILURE(OpenUnits(how));
    auto read = ReadItems(*units_, memory.size());
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_TRUE(*read == memory);
    const Status same = units_->CheckNames(NamesOf(memory));
    EXPECT_TRUE(same) << same.error().ToString();
  }
}

TEST_F(UncheckedUnits, AWrongNameIsFound) {
  const std::string memory = Mixed();
  Dump("one", memory);
  ASSERT_NO_FATAL_FAILURE(OpenUnits("one"));
  for (const size_t block : {size_t{0}, size_t{11}, size_t{40}, kBlocks}) {
    std::string other = memory;
    other[block * kBlock + 7] ^= 1;
    const Status wrong = units_->CheckNames(NamesOf(other));
    ASSERT_FALSE(wrong) << block;
    EXPECT_EQ(wrong.error().code, Code::kDataLoss);
    EXPECT_NE(wrong.error().message.find("not where it was copied to"), std::string::npos)
        << wrong.error().message;
  }
  std::vector<Id128> too_few = NamesOf(memory);
  too_few.pop_back();
  EXPECT_FALSE(units_->CheckNames(too_few));
}

TEST_F(UncheckedUnits, ADamagedUnitIsReadAndThenNamed) {
  const std::string memory = Memory(1);
  Dump("one", memory);
  ASSERT_NO_FATAL_FAILURE(OpenUnits("one"));
  Flip(PackPath(), 5 * kBlock + 9);
  auto read = ReadItems(*units_, memory.size());
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_FALSE(*read == memory);
  const Status wrong = units_->CheckNames(NamesOf(*read));
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("has checksum"), std::string::npos) << wrong.error().message;
  EXPECT_NE(wrong.error().message.find("device address"), std::string::npos);
}

TEST_F(UncheckedUnits, APackThatBecameShortIsAnError) {
  const std::string memory = Memory(1);
  Dump("one", memory);
  ASSERT_NO_FATAL_FAILURE(OpenUnits("one"));
  ASSERT_EQ(::truncate(PackPath().c_str(), 7 * kBlock), 0);
  auto read = ReadItems(*units_, memory.size());
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find(reader_->manifest().packs.front().path()), std::string::npos)
      << read.error().message;
}

}  // namespace
}  // namespace stasis::store
