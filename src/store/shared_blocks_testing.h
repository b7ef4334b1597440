// What the tests of shared blocks have in common: images of synthetic GPU memory in small blocks,
// on the real file system.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "image/block_reader.h"
#include "image/image_testing.h"
#include "image/reader.h"
#include "store/block_writer.h"
#include "store/gc.h"
#include "store/store_folder.h"

namespace stasis::store::testing {

using image::BlockKey;
using image::BlockReader;
using image::BlockSecret;
using image::CommitOptions;
using image::Compression;
using image::DeviceRange;
using image::Finding;
using image::ImageReader;
using image::ImageWriter;
using image::kPackAlign;
using image::Manifest;
using image::Pack;
using image::VerifyLevel;
using image::testing::MustBegin;
using image::testing::Noise;
using image::testing::TempStore;

inline constexpr uint32_t kBlock = 8192;
inline constexpr size_t kBlocks = 100;

inline std::vector<std::string> Names(const std::string& folder) { return *ListDir(folder); }

inline BlockKey Key(uint8_t seed = 0) {
  BlockSecret secret{};
  secret[0] = seed;
  return BlockKey(secret);
}

// Memory whose blocks are all different from each other and from any other seed's.
inline std::string Memory(uint32_t seed, size_t blocks = kBlocks) {
  std::string memory;
  for (size_t i = 0; i < blocks; ++i) {
    memory += Noise(kBlock, seed * 7919 + static_cast<uint32_t>(i) * 104729);
  }
  return memory;
}

inline void Change(std::string& memory, size_t block, uint32_t seed) {
  memory.replace(block * kBlock, kBlock, Noise(kBlock, 0x5eed0000 + seed));
}

class SharedBlocksTest : public ::testing::Test {
 protected:
  BlockWriterOptions Options() const {
    BlockWriterOptions options;
    options.job_id = "llama";
    options.uid = 1000;
    return options;
  }

  // An image of this memory, not yet committed.
  std::unique_ptr<ImageWriter> Write(const std::string& name, const std::string& memory,
                                     Manifest& manifest, const BlockWriterOptions& options,
                                     const BlockKey& key = Key()) {
    auto writer = MustBegin(store_.path(), name);
    auto blocks = BlockWriter::Begin(*writer, key, options);
    EXPECT_TRUE(blocks);
    auto added = blocks->Add({0, kAddress, memory.size(), kBlock, {}, 4711}, memory);
    EXPECT_TRUE(added) << added.error().ToString();
    auto written = blocks->Finish();
    EXPECT_TRUE(written) << written.error().ToString();
    last_ = *written;
    manifest = image::testing::FullManifest();
    manifest.job.uid = options.uid;
    manifest.job.id = options.job_id;
    written->DescribeIn(manifest);
    return writer;
  }
  // Returns what was stored for it.
  uint64_t Dump(const std::string& name, const std::string& memory,
                const BlockWriterOptions& options, const BlockKey& key = Key()) {
    Manifest manifest;
    auto writer = Write(name, memory, manifest, options, key);
    auto status = writer->Commit(manifest, {});
    EXPECT_TRUE(status) << status.error().ToString();
    return last_.stored_bytes;
  }
  uint64_t Dump(const std::string& name, const std::string& memory) {
    return Dump(name, memory, Options());
  }

  // What a verification finds, one line each.
  std::string Findings(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    if (!reader) return reader.error().ToString();
    auto report = (*reader)->Verify(VerifyLevel::kFull);
    if (!report) return report.error().ToString();
    std::string lines;
    for (const Finding& finding : report->findings) {
      lines += finding.path + " " + finding.message + "\n";
    }
    return lines;
  }
  std::string Restored(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    if (!reader) return reader.error().ToString();
    auto blocks = BlockReader::Open(**reader);
    if (!blocks) return blocks.error().ToString();
    const DeviceRange& range = (*reader)->manifest().ranges[0];
    std::string memory(range.size_bytes, 'x');
    for (size_t i = 0; i < range.blocks.size(); ++i) {
      auto status = blocks->Read(range, i, memory.data() + i * range.block_bytes);
      if (!status) return status.error().ToString();
    }
    return memory;
  }
  void ExpectWhole(const std::string& name, const std::string& memory) const {
    EXPECT_EQ(Findings(name), "") << name;
    EXPECT_TRUE(Restored(name) == memory) << name;
  }
  std::vector<Pack> Packs(const std::string& name) const {
    return (*ImageReader::Open(store_ / name))->manifest().packs;
  }
  // Of all packs in the store, each file once.
  uint64_t Occupied() const {
    std::map<ino_t, uint64_t> files;
    for (const std::string& name : Names(store_.path())) {
      for (const std::string& pack : Names(store_ / name + "/gpu")) {
        struct stat st;
        EXPECT_EQ(::stat((store_ / name + "/gpu/" + pack).c_str(), &st), 0);
        files[st.st_ino] = static_cast<uint64_t>(st.st_blocks) * 512;
      }
    }
    uint64_t total = 0;
    for (const auto& [inode, bytes] : files) total += bytes;
    return total;
  }
  void Flip(const std::string& path, uint64_t offset) const {
    auto fd = Open(path, O_RDWR);
    char byte = 0;
    ASSERT_EQ(::pread(fd->get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= 4;
    ASSERT_EQ(::pwrite(fd->get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  GcReport Gc() const {
    auto report = CollectGarbage(store_.path());
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : GcReport{};
  }

  static constexpr uint64_t kAddress = 0x7f0000000000;
  TempStore store_;
  WrittenBlocks last_;
};

}  // namespace stasis::store::testing
