// Test images of synthetic GPU memory in small blocks, on the real file system.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/block_writer.h"
#include "store/gc.h"
#include "store/image_reader.h"
#include "store/image_testing.h"
#include "store/store_folder.h"
#include "store/unit_reader.h"

namespace stasis::store::testing {

inline constexpr uint32_t kBlock = 8192;
inline constexpr size_t kBlocks = 100;

inline std::vector<std::string> Names(const std::string& folder) { return *ListDir(folder); }

inline UnitNames Key(uint8_t seed = 0) {
  BlockSecret secret{};
  secret[0] = seed;
  return UnitNames(secret);
}

// Memory whose blocks differ from each other and from those of any other seed.
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

// Verifies an image and returns one line for each finding.
inline std::string FindingsOf(const std::string& image) {
  auto reader = ImageReader::Open(image);
  if (!reader) return reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  if (!report) return report.error().ToString();
  std::string lines;
  for (const Finding& finding : report->findings) {
    lines += finding.path + " " + finding.message + "\n";
  }
  return lines;
}

// The memory of an image's first range.
inline Result<std::string> RangeOf(const ImageReader& reader) {
  UnitReader::Selection selection{{0}, false, true};
  STASIS_ASSIGN(auto units, UnitReader::Open(reader, selection));
  std::string memory(reader.manifest().ranges[0].size_bytes, 'x');
  char* const outputs[] = {memory.data()};
  STASIS_TRY(units.Read(outputs, nullptr, nullptr));
  return memory;
}

class SharedUnitsTest : public ::testing::Test {
 protected:
  WriteOptions Options() const {
    WriteOptions options;
    options.job_id = "llama";
    options.uid = 1000;
    return options;
  }

  // Writes an image of this memory and does not commit it.
  std::unique_ptr<ImageWriter> Write(const std::string& name, const std::string& memory,
                                     Manifest& manifest, const WriteOptions& options,
                                     const UnitNames& key = Key()) {
    auto writer = MustBegin(store_.path(), name);
    auto written = WriteBlocks(*writer, key,
                               {{{0, kAddress, memory.size(), kBlock, {}, 4711}, memory}}, options);
    EXPECT_TRUE(written) << written.error().ToString();
    last_ = *written;
    manifest = FullManifest();
    manifest.job.uid = options.uid;
    manifest.job.id = options.job_id;
    written->DescribeIn(manifest);
    return writer;
  }
  // Writes and commits an image. Returns the bytes stored for it.
  uint64_t Dump(const std::string& name, const std::string& memory, const WriteOptions& options,
                const UnitNames& key = Key()) {
    Manifest manifest;
    auto writer = Write(name, memory, manifest, options, key);
    auto status = writer->Commit(manifest, {});
    EXPECT_TRUE(status) << status.error().ToString();
    return last_.stored_bytes;
  }
  uint64_t Dump(const std::string& name, const std::string& memory) {
    return Dump(name, memory, Options());
  }

  std::string Findings(const std::string& name) const { return FindingsOf(store_ / name); }
  std::string Restored(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    if (!reader) return reader.error().ToString();
    auto memory = RangeOf(**reader);
    return memory ? *memory : memory.error().ToString();
  }
  void ExpectIntact(const std::string& name, const std::string& memory) const {
    EXPECT_EQ(Findings(name), "") << name;
    EXPECT_TRUE(Restored(name) == memory) << name;
  }
  std::vector<Pack> Packs(const std::string& name) const {
    return (*ImageReader::Open(store_ / name))->manifest().packs;
  }
  // Returns the disk space, in bytes, of all packs in the store. Each file counts once.
  uint64_t Occupied() const {
    std::map<ino_t, uint64_t> files;
    for (const std::string& name : Names(store_.path())) {
      for (const std::string& pack : Names(store_ / name + "/packs")) {
        struct stat st;
        EXPECT_EQ(::stat((store_ / name + "/packs/" + pack).c_str(), &st), 0);
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
  WrittenUnits last_;
};

}  // namespace stasis::store::testing
