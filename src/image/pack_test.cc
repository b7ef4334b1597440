#include "image/pack.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "image/block_name.h"
#include "image/checksum.h"
#include "image/image_testing.h"
#include "image/reader.h"

namespace stasis::image {
namespace {

using testing::Noise;
using testing::TempStore;
using testing::WriteFile;

const Id128 kId = Id128::FromRaw("the id of a pack");

Id128 NameOf(const std::string& block) {
  static const BlockKey key(BlockSecret{});
  return key.Name(block);
}

const std::vector<std::string>& Blocks() {
  static const std::vector<std::string> blocks = {Noise(5000, 1), Noise(4096, 2), Noise(1, 3)};
  return blocks;
}

class PackTest : public ::testing::Test {
 protected:
  PackTest() {
    auto writer = PackWriter::Begin(*Open(path(), O_WRONLY | O_CREAT), path(), kId);
    EXPECT_TRUE(writer);
    for (const std::string& block : Blocks()) EXPECT_TRUE(writer->Append(NameOf(block), block));
    EXPECT_TRUE(writer->Append(NameOf(Blocks()[0]), Blocks()[0])) << "the same once more";
    EXPECT_EQ(writer->blocks(), 3u);
    EXPECT_TRUE(writer->Finish());
    raw_ = *ReadFile(path());
    EXPECT_EQ(writer->bytes(), raw_.size());
  }
  std::string path() const { return store_ / "0.pack"; }
  Result<PackReader> Reopen(const std::string& raw) {
    WriteFile(path(), raw);
    auto fd = OpenFolder(store_.path());
    return PackReader::Open(*OpenRegular(fd->get(), "0.pack"), "gpu/0.pack");
  }

  TempStore store_;
  std::string raw_;
};

TEST_F(PackTest, BlocksComeBackByTheirNames) {
  EXPECT_EQ(raw_.size(), 4096u + 8192 + 4096 + 4096 + 3 * 64 + 64);
  auto reader = Reopen(raw_);
  ASSERT_TRUE(reader) << reader.error().ToString();
  ASSERT_EQ(reader->entries().size(), 3u);
  for (const std::string& block : Blocks()) {
    const PackEntry* entry = reader->Find(NameOf(block));
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->offset % 4096, 0u);
    std::string out(entry->logical_bytes, '\0');
    ASSERT_TRUE(reader->Read(*entry, out.data()));
    EXPECT_EQ(out, block);
  }
  EXPECT_EQ(reader->Find(Id128::FromRaw("no such block   ")), nullptr);
}

TEST_F(PackTest, AnyByteChangedIsFound) {
  auto folder = OpenFolder(store_.path());
  auto fd = Open(path(), O_WRONLY);
  std::string out(8192, '\0');
  // Every byte of header, index and footer; of the blocks every 13th.
  for (size_t i = 0; i < raw_.size(); i += i < 4096 || i > 20480 - 13 ? 1 : 13) {
    char bad = static_cast<char>(raw_[i] ^ 0x40);
    ASSERT_EQ(::pwrite(fd->get(), &bad, 1, static_cast<off_t>(i)), 1);
    auto reader = PackReader::Open(*OpenRegular(folder->get(), "0.pack"), "gpu/0.pack");
    bool read = static_cast<bool>(reader);
    bool checked = read;
    for (size_t b = 0; reader && b < reader->entries().size(); ++b) {
      read = read && reader->Read(reader->entries()[b], out.data());
      checked = checked && reader->Check(reader->entries()[b]);
    }
    ASSERT_FALSE(read) << "byte " << i;
    ASSERT_FALSE(checked) << "byte " << i;
    ASSERT_EQ(::pwrite(fd->get(), &raw_[i], 1, static_cast<off_t>(i)), 1);
  }
}

// Streams that are not what they should be, under checksums that are right: as a forger would, or
// memory that broke while they were made.
TEST_F(PackTest, ACompressedBlockIsCheckedBeforeAndAfter) {
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
    };
    const Row rows[] = {{stored, 20'000, true},
                        {stored, 20'001, false},
                        {stored, 2 << 20, false},
                        {stored + "x", 20'000, false},
                        {stored.substr(0, stored.size() - 1), 20'000, false},
                        {Noise(10'000, 7), 20'000, false}};
    for (const Row& row : rows) {
      auto writer = PackWriter::Begin(*Open(path(), O_WRONLY | O_TRUNC), path(), kId);
      ASSERT_TRUE(writer->Append(NameOf("b"), row.stored, row.logical, codec));
      ASSERT_TRUE(writer->Finish());
      auto reader = Reopen(*ReadFile(path()));
      ASSERT_TRUE(reader) << reader.error().ToString();
      const PackEntry& entry = reader->entries()[0];
      std::string out(2 << 20, 'x');
      auto read = reader->Read(entry, out.data());
      EXPECT_EQ(bool(read), row.good) << CodecName(codec) << " " << row.logical;
      EXPECT_EQ(bool(reader->Check(entry)), row.good);
      if (row.good) {
        EXPECT_EQ(out.substr(0, row.logical), block);
      } else {
        EXPECT_EQ(read.error().code, Code::kDataLoss);
      }
    }
    EXPECT_FALSE(PackWriter::Begin(*Open(path(), O_WRONLY | O_TRUNC), path(), kId)
                     ->Append(NameOf("b"), stored, stored.size(), codec))
        << "as long as the block itself";
  }
}

// Blocks of the size that goes past the page cache, whole ones and others, aligned and not.
TEST_F(PackTest, LargeBlocksComeBackToo) {
  auto writer = PackWriter::Begin(*Open(path(), O_WRONLY | O_TRUNC), path(), kId);
  std::vector<std::string> blocks;
  for (uint32_t i = 0; i < 40; ++i) {
    blocks.push_back(Noise(i % 3 == 0 ? kBlockBytes : 300'000 + i, i));
  }
  std::string shifted = "x" + blocks[0];
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < blocks.size(); i += 4) {
        std::string_view data = i == 0 ? std::string_view(shifted).substr(1) : blocks[i];
        EXPECT_TRUE(writer->Append(NameOf(blocks[i]), data));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writer->Finish());
  std::string raw = *ReadFile(path(), 256 << 20);
  EXPECT_EQ(raw.size(), writer->bytes());
  auto reader = Reopen(raw);
  ASSERT_TRUE(reader) << reader.error().ToString();
  for (const std::string& block : blocks) {
    const PackEntry* entry = reader->Find(NameOf(block));
    ASSERT_NE(entry, nullptr);
    std::string out(block.size(), 'x');
    ASSERT_TRUE(reader->Read(*entry, out.data()));
    EXPECT_TRUE(out == block);
    EXPECT_TRUE(reader->Check(*entry));
  }
}

TEST_F(PackTest, AHoleIsFoundInTheBlockThatHasIt) {
  auto writer = PackWriter::Begin(*Open(path(), O_WRONLY | O_TRUNC), path(), kId);
  for (uint32_t i = 0; i < 6; ++i) {
    std::string block = Noise(2 * kPackAlign, i);
    ASSERT_TRUE(writer->Append(NameOf(block), block));
  }
  ASSERT_TRUE(writer->Finish());
  auto fd = Open(path(), O_RDWR);
  auto folder = OpenFolder(store_.path());
  auto reader = PackReader::Open(*OpenRegular(folder->get(), "0.pack"), "gpu/0.pack");
  std::vector<const PackEntry*> all;
  for (const PackEntry& entry : reader->entries()) all.push_back(&entry);
  EXPECT_FALSE(reader->AnyIsHole(all));
  EXPECT_FALSE(reader->AnyIsHole({}));
  // The second half of one block, all of another.
  for (auto [offset, bytes] : {std::pair(all[1]->offset + kPackAlign, kPackAlign),
                               std::pair(all[4]->offset, 2 * kPackAlign)}) {
    ASSERT_EQ(::fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(offset), static_cast<off_t>(bytes)),
              0);
  }
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(reader->AnyIsHole({all[i]}), i == 1 || i == 4);
  EXPECT_FALSE(reader->AnyIsHole({all[5], all[0], all[3], all[2]}));
  EXPECT_TRUE(reader->AnyIsHole({all[5], all[4], all[0]}));
  EXPECT_TRUE(reader->AnyIsHole({all[3], all[1]}));
}

TEST_F(PackTest, AnyOtherLengthIsFound) {
  for (size_t length = 0; length < raw_.size(); length += length < raw_.size() - 300 ? 97 : 1) {
    auto reader = Reopen(raw_.substr(0, length));
    ASSERT_FALSE(reader) << length;
    EXPECT_EQ(reader.error().code, Code::kDataLoss);
  }
  EXPECT_FALSE(Reopen(raw_ + "x"));
  EXPECT_FALSE(Reopen(raw_ + raw_.substr(raw_.size() - 64)));
}

// Numbers that lie, under checksums that are right.
TEST_F(PackTest, HostileNumbersAreRefused) {
  size_t index = raw_.size() - 4 * 64;
  auto reseal = [&](size_t offset, std::string_view bytes) {
    std::string bad = raw_;
    bad.replace(offset, bytes.size(), bytes);
    size_t footer = bad.size() - 64;
    bad.replace(footer + 32, 16,
                Checksum(std::string_view(bad).substr(index, footer - index)).View());
    bad.replace(footer + 48, 16, Checksum(std::string_view(bad).substr(footer, 48)).View());
    bad.replace(4080, 16, Checksum(std::string_view(bad).substr(0, 4080)).View());
    auto reader = Reopen(bad);
    return reader ? Code::kOk : reader.error().code;
  };
  constexpr std::string_view kHuge = "\xff\xff\xff\xff\xff\xff\xff\xff";
  constexpr std::string_view kSeven("\x07\0\0\0", 4);
  EXPECT_EQ(reseal(8, std::string_view("\x02", 1)), Code::kOk) << "unchanged";
  EXPECT_EQ(reseal(8, kSeven), Code::kUnimplemented) << "version";
  EXPECT_EQ(reseal(16, "\x01"), Code::kUnimplemented) << "features";
  EXPECT_EQ(reseal(12, kSeven), Code::kDataLoss) << "header length";
  EXPECT_EQ(reseal(raw_.size() - 64 + 16, kHuge), Code::kDataLoss) << "index offset";
  EXPECT_EQ(reseal(raw_.size() - 64 + 24, kHuge), Code::kDataLoss) << "entry count";
  EXPECT_EQ(reseal(index + 16, kHuge), Code::kDataLoss) << "block offset";
  EXPECT_EQ(reseal(index + 24, kHuge.substr(4)), Code::kDataLoss) << "stored bytes";
  EXPECT_EQ(reseal(index + 28, kSeven), Code::kDataLoss) << "logical bytes";
  EXPECT_EQ(reseal(index + 32, kSeven), Code::kUnimplemented) << "codec";
  EXPECT_EQ(reseal(index, std::string(16, '\0')), Code::kDataLoss) << "name zero";
  EXPECT_EQ(reseal(index, raw_.substr(index + 64, 16)), Code::kDataLoss) << "a name twice";
}

TEST_F(PackTest, WhatIsNoBlockIsNotStored) {
  auto writer = PackWriter::Begin(*Open(store_ / "1.pack", O_WRONLY | O_CREAT), "1.pack", kId);
  EXPECT_FALSE(writer->Append(Id128{}, "x"));
  EXPECT_FALSE(writer->Append(NameOf("x"), ""));
  EXPECT_FALSE(writer->Append(NameOf("x"), std::string(kBlockBytes + 1, 'x')));
  EXPECT_TRUE(writer->Append(NameOf("x"), "x"));
  EXPECT_FALSE(writer->Append(NameOf("x"), "y")) << "one name for two blocks";
  EXPECT_TRUE(writer->Append(NameOf("big"), Noise(kBlockBytes)));
}

TEST_F(PackTest, APackIsAFileOfAnImage) {
  auto image = testing::MustBegin(store_.path(), "a");
  Pack described;
  {
    auto pack = image->AddPack();
    for (const std::string& block : Blocks()) ASSERT_TRUE(pack->Append(NameOf(block), block));
    ASSERT_TRUE(pack->Finish());
    described.id = pack->id();
    described.used_blocks = 1;
    described.used_bytes = 4096;
  }
  Manifest manifest = testing::FullManifest();
  manifest.block_naming = BlockNaming{kBlockNameFunction, BlockKey(BlockSecret{}).id()};
  manifest.packs = {described};
  manifest.ranges = {
      {0, 0x7000000, 3 * 4096, 4096, {Id128{}, NameOf(Blocks()[1]), Id128{}}, 4711, {0, 0, 0}}};
  auto status = image->Commit(manifest, {});
  ASSERT_TRUE(status) << status.error().ToString();

  auto reader = ImageReader::Open(image->path());
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto pack = (*reader)->OpenPack((*reader)->manifest().packs[0]);
  ASSERT_TRUE(pack);
  EXPECT_NE(pack->Find((*reader)->manifest().ranges[0].blocks[1]), nullptr);
  EXPECT_TRUE((*reader)->Verify(VerifyLevel::kFull)->ok());
}

TEST_F(PackTest, APackThatIsUnfinishedOrNobodysIsNotCommitted) {
  for (bool finished : {false, true}) {
    auto image = testing::MustBegin(store_.path(), "a");
    auto pack = image->AddPack();
    ASSERT_TRUE(pack->Append(NameOf("x"), "x"));
    if (finished) {
      ASSERT_TRUE(pack->Finish());
    }
    Manifest manifest = testing::FullManifest();
    auto status = image->Commit(manifest, {});
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().ToString().find("gpu/" + pack->id().Hex()), std::string::npos);
  }
}

TEST_F(PackTest, AFullDiskIsAClearError) {
  auto pack = PackWriter::Begin(*Open("/dev/full", O_WRONLY), "/dev/full", kId);
  ASSERT_FALSE(pack);
  EXPECT_EQ(pack.error().code, Code::kResourceExhausted);
  EXPECT_NE(pack.error().ToString().find("write pack /dev/full"), std::string::npos);
  EXPECT_FALSE(pack.error().hint.empty());
}

}  // namespace
}  // namespace stasis::image
