#include "store/pack.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/checksum.h"
#include "store/image_reader.h"
#include "store/image_testing.h"
#include "store/unit_jobs.h"
#include "store/unit_names.h"

namespace stasis::store {
namespace {

using testing::Noise;
using testing::TempStore;
using testing::WriteFile;

const Id128 kId = Id128::FromRaw("the id of a pack");

PackUnit UnitOf(std::string_view data) {
  static const UnitNames names(BlockSecret{});
  return {*names.NameOf(data), Checksum(data)};
}

const std::vector<std::string>& Blocks() {
  static const std::vector<std::string> blocks = {Noise(5000, 1), Noise(4096, 2), Noise(1, 3)};
  return blocks;
}

Status AppendBlock(PackWriter& writer, std::string_view block) {
  const PackUnit unit = UnitOf(block);
  STASIS_TRY(writer.Append({&unit, 1}, block, block.size(), Codec::kNone));
  return {};
}

// Reads a unit and returns its bytes.
Result<std::string> Read(const PackReader& pack, uint32_t unit) {
  UnitJobs jobs({&pack});
  std::string out(jobs.Add(0, unit, 1), 'x');
  jobs.Plan(UnitJobs::Order::kPacks);
  char* const outputs[] = {out.data()};
  UnitJobs::UnitPlace where;
  for (size_t i = 0; i < jobs.size(); ++i) STASIS_TRY(jobs.Run(i, outputs, nullptr, where));
  return out;
}

bool AnyIsHole(const PackReader& pack, const std::vector<uint32_t>& units) {
  UnitJobs jobs({&pack});
  for (uint32_t unit : units) jobs.Add(0, unit, 1);
  jobs.Plan(UnitJobs::Order::kPacks);
  return jobs.AnyIsHole(0);
}

class PackTest : public ::testing::Test {
 protected:
  PackTest() {
    PackWriter writer(*Open(path(), O_WRONLY | O_CREAT), path(), kId, kBlockBytes);
    for (const std::string& block : Blocks()) EXPECT_TRUE(AppendBlock(writer, block));
    EXPECT_EQ(writer.units(), 3u);
    EXPECT_TRUE(writer.Finish());
    raw_ = *ReadFile(path());
  }
  std::string path() const { return store_ / "0.pack"; }
  Result<PackReader> Reopen(const std::string& raw) {
    WriteFile(path(), raw);
    return Reopen();
  }
  Result<PackReader> Reopen() {
    auto fd = OpenFolder(store_.path());
    return PackReader::Open(*OpenRegular(fd->get(), "0.pack"), "packs/0.pack");
  }
  PackWriter NewWriter(uint32_t unit_bytes = kBlockBytes) {
    return PackWriter(*Open(path(), O_WRONLY | O_TRUNC), path(), kId, unit_bytes);
  }

  TempStore store_;
  std::string raw_;
};

TEST_F(PackTest, UnitsAreReadByTheirNumbers) {
  EXPECT_EQ(raw_.size(), 8192u + 4096 + 4096 + 3 * 48 + 3 * 32 + 128);
  auto reader = Reopen(raw_);
  ASSERT_TRUE(reader) << reader.error().ToString();
  ASSERT_EQ(reader->units(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reader->index().ExtentOf(i).offset % 4096, 0u);
    EXPECT_EQ(reader->index().units[i].name, UnitOf(Blocks()[i]).name);
    auto block = Read(*reader, i);
    ASSERT_TRUE(block) << block.error().ToString();
    EXPECT_EQ(*block, Blocks()[i]);
  }
}

// Adjacent pages need only one extent.
TEST_F(PackTest, ExtentsWithoutACodecAreJoined) {
  auto writer = NewWriter(kPageBytes);
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(AppendBlock(writer, Noise(i == 3 ? 100 : kPageBytes, i)));
  }
  ASSERT_TRUE(writer.Finish());
  auto reader = Reopen();
  ASSERT_TRUE(reader);
  ASSERT_EQ(reader->index().extents.size(), 2u) << "only the last unit of an extent may be short";
  EXPECT_EQ(reader->index().extents[0].units, 4u);
  EXPECT_EQ(reader->index().extents[0].logical_bytes, 3 * kPageBytes + 100u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(*Read(*reader, i), Noise(i == 3 ? 100 : kPageBytes, i));
  }
}

TEST_F(PackTest, AnyByteChangedIsFound) {
  auto fd = Open(path(), O_WRONLY);
  // Changes every byte of the index and footer, and every 13th byte of the blocks.
  for (size_t i = 0; i<raw_.size(); i += i> 16384 - 13 ? 1 : 13) {
    char bad = static_cast<char>(raw_[i] ^ 0x40);
    ASSERT_EQ(::pwrite(fd->get(), &bad, 1, static_cast<off_t>(i)), 1);
    auto reader = Reopen();
    bool intact = static_cast<bool>(reader);
    for (uint32_t u = 0; intact && u < reader->units(); ++u) intact &= bool(Read(*reader, u));
    ASSERT_FALSE(intact) << "byte " << i;
    ASSERT_EQ(::pwrite(fd->get(), &raw_[i], 1, static_cast<off_t>(i)), 1);
  }
}

// The stream is wrong although the checksum of the extent is correct, as after a forgery or a
// memory error during compression.
TEST_F(PackTest, ACompressedExtentIsCheckedBeforeAndAfter) {
  std::string block = Noise(20'000);
  for (size_t i = 0; i < block.size(); ++i) block[i] = i % 32 < 16 ? '\0' : block[i];
  for (Codec codec : {Codec::kLz4, Codec::kZstd}) {
    std::string stored(block.size(), '\0');
    stored.resize(Compress(codec, block, stored.data(), stored.size()));
    ASSERT_FALSE(stored.empty());
    struct Row {
      std::string stored;
      size_t logical;
      bool good;
      std::string unit;
    };
    const Row rows[] = {{stored, 20'000, true, block},
                        {stored, 20'000, false, block + "x"},  // another checksum of the unit
                        {stored, 20'001, false, block},
                        {stored, 2 << 20, false, block},
                        {stored + "x", 20'000, false, block},
                        {stored.substr(0, stored.size() - 1), 20'000, false, block},
                        {Noise(10'000, 7), 20'000, false, block}};
    for (const Row& row : rows) {
      auto writer = NewWriter();
      const PackUnit unit = UnitOf(row.unit);
      ASSERT_TRUE(writer.Append({&unit, 1}, row.stored, row.logical, codec));
      ASSERT_TRUE(writer.Finish());
      auto reader = Reopen();
      ASSERT_TRUE(reader) << reader.error().ToString();
      auto read = Read(*reader, 0);
      EXPECT_EQ(bool(read), row.good) << CodecName(codec) << " " << row.logical;
      if (row.good) {
        EXPECT_EQ(*read, block);
      } else {
        EXPECT_EQ(read.error().code, Code::kDataLoss);
      }
    }
    const PackUnit unit = UnitOf(block);
    EXPECT_FALSE(NewWriter().Append({&unit, 1}, stored, stored.size(), codec))
        << "not smaller than the unit";
  }
}

// Blocks that are large enough to bypass the page cache: full and short ones, aligned and not.
TEST_F(PackTest, LargeBlocksAreReadBack) {
  auto writer = NewWriter();
  std::vector<std::string> blocks;
  for (uint32_t i = 0; i < 40; ++i) {
    blocks.push_back(Noise(i % 3 == 0 ? kBlockBytes : 300'000 + i, i));
  }
  std::string shifted = "x" + blocks[0];
  std::vector<uint32_t> numbers(blocks.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < blocks.size(); i += 4) {
        std::string_view data = i == 0 ? std::string_view(shifted).substr(1) : blocks[i];
        const PackUnit unit = UnitOf(data);
        auto number = writer.Append({&unit, 1}, data, data.size(), Codec::kNone);
        EXPECT_TRUE(number);
        if (number) numbers[i] = *number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writer.Finish());
  auto reader = Reopen();
  ASSERT_TRUE(reader) << reader.error().ToString();
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto read = Read(*reader, numbers[i]);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_TRUE(*read == blocks[i]);
  }
}

TEST_F(PackTest, AHoleIsFoundInTheUnitThatHasIt) {
  auto writer = NewWriter();
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(AppendBlock(writer, Noise(2 * kPackAlign, i)));
  ASSERT_TRUE(writer.Finish());
  auto fd = Open(path(), O_RDWR);
  auto reader = Reopen();
  ASSERT_TRUE(reader);
  EXPECT_FALSE(AnyIsHole(*reader, {0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(AnyIsHole(*reader, {}));
  // Punch out the second half of one block, and another block completely.
  const auto& extents = reader->index().extents;
  for (auto [offset, bytes] : {std::pair(extents[1].offset + kPackAlign, kPackAlign),
                               std::pair(extents[4].offset, 2 * kPackAlign)}) {
    ASSERT_EQ(::fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(offset), static_cast<off_t>(bytes)),
              0);
  }
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(AnyIsHole(*reader, {i}), i == 1 || i == 4);
  EXPECT_FALSE(AnyIsHole(*reader, {5, 0, 3, 2}));
  EXPECT_TRUE(AnyIsHole(*reader, {5, 4, 0}));
  EXPECT_TRUE(AnyIsHole(*reader, {3, 1}));
}

TEST_F(PackTest, AnyOtherLengthIsFound) {
  for (size_t length = 0; length < raw_.size(); length += length < raw_.size() - 400 ? 97 : 1) {
    auto reader = Reopen(raw_.substr(0, length));
    ASSERT_FALSE(reader) << length;
    EXPECT_EQ(reader.error().code, Code::kDataLoss);
  }
  EXPECT_FALSE(Reopen(raw_ + "x"));
  EXPECT_FALSE(Reopen(raw_ + raw_.substr(raw_.size() - 128)));
}

// The numbers are wrong, but the checksums are correct.
TEST_F(PackTest, HostileNumbersAreRefused) {
  const size_t footer = raw_.size() - 128;
  const size_t index = footer - 3 * 48 - 3 * 32;
  auto reseal = [&](size_t offset, std::string_view bytes) {
    std::string bad = raw_;
    bad.replace(offset, bytes.size(), bytes);
    bad.replace(footer + 72, 16,
                Checksum(std::string_view(bad).substr(index, footer - index)).View());
    bad.replace(footer + 112, 16, Checksum(std::string_view(bad).substr(footer, 112)).View());
    auto reader = Reopen(bad);
    return reader ? Code::kOk : reader.error().code;
  };
  constexpr std::string_view kHuge = "\xff\xff\xff\xff\xff\xff\xff\xff";
  constexpr std::string_view kSeven("\x07\0\0\0", 4);
  EXPECT_EQ(reseal(footer + 8, std::string_view("\x01", 1)), Code::kOk) << "unchanged";
  EXPECT_EQ(reseal(footer + 8, kSeven), Code::kUnimplemented) << "version";
  EXPECT_EQ(reseal(footer + 16, "\x01"), Code::kUnimplemented) << "features";
  EXPECT_EQ(reseal(footer + 12, kSeven), Code::kDataLoss) << "footer length";
  EXPECT_EQ(reseal(footer + 40, kSeven), Code::kDataLoss) << "unit bytes";
  EXPECT_EQ(reseal(footer + 48, kHuge), Code::kDataLoss) << "index offset";
  EXPECT_EQ(reseal(footer + 56, kHuge), Code::kDataLoss) << "extents";
  EXPECT_EQ(reseal(footer + 64, kHuge), Code::kDataLoss) << "units";
  EXPECT_EQ(reseal(index, kHuge), Code::kDataLoss) << "offset";
  EXPECT_EQ(reseal(index + 8, kHuge), Code::kDataLoss) << "stored bytes";
  EXPECT_EQ(reseal(index + 16, kSeven), Code::kDataLoss) << "logical bytes";
  EXPECT_EQ(reseal(index + 24, kSeven), Code::kDataLoss) << "units of an extent";
  EXPECT_EQ(reseal(index + 28, kSeven), Code::kUnimplemented) << "codec";
  EXPECT_EQ(reseal(index + 32, kSeven), Code::kDataLoss) << "a checksum without a codec";
  EXPECT_EQ(reseal(index + 48, raw_.substr(index, 8)), Code::kDataLoss) << "overlapping extents";
  EXPECT_EQ(reseal(index + 3 * 48, std::string(16, '\0')), Code::kDataLoss) << "a zero name";
}

TEST_F(PackTest, ImpossibleExtentsAreNotWritten) {
  auto writer = NewWriter();
  const PackUnit unnamed{}, unit = UnitOf("x");
  EXPECT_FALSE(writer.Append({&unnamed, 1}, "x", 1, Codec::kNone));
  EXPECT_FALSE(writer.Append({&unit, 1}, "", 0, Codec::kNone));
  EXPECT_FALSE(writer.Append({}, "x", 1, Codec::kNone));
  EXPECT_FALSE(writer.Append({&unit, 1}, "x", 2, Codec::kNone));
  const std::string large(kBlockBytes + 1, 'x');
  EXPECT_FALSE(writer.Append({&unit, 1}, large, large.size(), Codec::kNone));
  EXPECT_TRUE(AppendBlock(writer, "x"));
  EXPECT_TRUE(AppendBlock(writer, Noise(kBlockBytes)));
}

TEST_F(PackTest, APackIsAFileOfAnImage) {
  auto image = testing::MustBegin(store_.path(), "a");
  Pack pack;
  pack.id = kId;
  pack.used_units = 1;
  pack.used_bytes = 4096;
  PackWriter writer(*image->AddPack(pack), "a pack", pack.id, kBlockBytes);
  for (const std::string& block : Blocks()) ASSERT_TRUE(AppendBlock(writer, block));
  ASSERT_TRUE(writer.Finish());
  Manifest manifest = testing::FullManifest();
  manifest.unit_naming = UnitNaming{kUnitNameFunction, UnitNames(BlockSecret{}).key().id()};
  manifest.packs = {pack};
  manifest.ranges = {{0,
                      0x7000000,
                      3 * 4096,
                      4096,
                      {{UnitRun::kZeros, 0, 1}, {0, 1, 1}, {UnitRun::kZeros, 0, 1}},
                      4711}};
  auto status = image->Commit(manifest, {});
  ASSERT_TRUE(status) << status.error().ToString();

  auto reader = ImageReader::Open(image->path());
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_TRUE((*reader)->OpenPack((*reader)->manifest().packs[0]));
  EXPECT_TRUE((*reader)->Verify(VerifyLevel::kFull)->ok());
}

TEST_F(PackTest, APackThatIsUnfinishedOrUnusedIsNotCommitted) {
  for (bool finished : {false, true}) {
    auto image = testing::MustBegin(store_.path(), "a");
    Pack pack;
    pack.id = kId;
    PackWriter writer(*image->AddPack(pack), "a pack", pack.id, kBlockBytes);
    ASSERT_TRUE(AppendBlock(writer, "x"));
    if (finished) {
      ASSERT_TRUE(writer.Finish());
    }
    Manifest manifest = testing::FullManifest();
    auto status = image->Commit(manifest, {});
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().ToString().find(pack.path()), std::string::npos);
  }
}

TEST_F(PackTest, AnImageThatRefersToAUnitThatWasNotWrittenIsNotCommitted) {
  for (uint32_t unit : {2u, 3u}) {
    auto image = testing::MustBegin(store_.path(), "a" + std::to_string(unit));
    Pack pack;
    pack.id = kId;
    pack.used_units = 1;
    PackWriter writer(*image->AddPack(pack), "a pack", pack.id, kBlockBytes);
    for (const std::string& block : Blocks()) ASSERT_TRUE(AppendBlock(writer, block));
    ASSERT_TRUE(writer.Finish());
    Manifest manifest = testing::FullManifest();
    manifest.unit_naming = UnitNaming{kUnitNameFunction, UnitNames(BlockSecret{}).key().id()};
    manifest.packs = {pack};
    manifest.ranges = {{0, 0x7000000, 1, 4096, {{0, unit, 1}}, 4711}};
    auto status = image->Commit(manifest, {});
    EXPECT_EQ(bool(status), unit == 2) << unit;
    if (unit == 3) {
      EXPECT_NE(status.error().ToString().find("unit 3 of pack 0 was never written"),
                std::string::npos);
    }
  }
}

TEST_F(PackTest, AFullDiskIsAClearError) {
  PackWriter writer(*Open("/dev/full", O_WRONLY), "/dev/full", kId, kBlockBytes);
  auto status = AppendBlock(writer, "x");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
  EXPECT_NE(status.error().ToString().find("write pack /dev/full"), std::string::npos);
  EXPECT_FALSE(status.error().hint.empty());
}

}  // namespace
}  // namespace stasis::store
