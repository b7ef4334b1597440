// Test helpers: local images with synthetic memory, and a repository in memory.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "objects/testing/memory_store.h"
#include "repository/gc.h"
#include "repository/images.h"
#include "repository/pull.h"
#include "repository/push.h"
#include "repository/repository.h"
#include "store/block_writer.h"
#include "store/image_reader.h"
#include "store/image_testing.h"
#include "store/page_writer.h"
#include "store/unit_reader.h"

namespace stasis::repository::testing {

using objects::testing::MemoryStore;
using objects::testing::Method;
using store::testing::Noise;
using store::testing::TempStore;

inline constexpr uint32_t kTestBlock = 8192;

inline store::UnitNames NamesOf(uint8_t seed) {
  BlockSecret secret{};
  secret[0] = seed;
  return store::UnitNames(secret);
}

// The contents of an image that a restore reads.
struct Contents {
  std::string gpu;    // of one range
  std::string pages;  // of cpu/pages-1.img
  std::map<std::string, std::string> files;

  bool operator==(const Contents&) const = default;
};

// Memory in which every unit differs from all others, and from those of another seed.
inline Contents MakeContents(uint32_t seed, size_t blocks = 40, size_t pages = 60) {
  Contents contents;
  for (size_t i = 0; i < blocks; ++i) {
    contents.gpu += Noise(kTestBlock, seed * 7919 + static_cast<uint32_t>(i) * 104729);
  }
  for (size_t i = 0; i < pages; ++i) {
    contents.pages += Noise(store::kPageBytes, seed * 611953 + static_cast<uint32_t>(i) * 15485863);
  }
  contents.files["cpu/inventory.img"] = Noise(100, seed);
  contents.files["cpu/empty.img"] = "";
  contents.files["agent/00ff.so"] = Noise(70'000, 42);  // the same in all images
  contents.files["log/criu-dump.log"] = "(00.000001) hello\n";
  return contents;
}

inline constexpr uint64_t kTestAddress = 0x7f0000000000;

// Writes a local image with these contents.
inline std::string WriteImage(const std::string& store, const std::string& name,
                              const Contents& contents, const store::UnitNames& names,
                              store::WriteOptions options = {},
                              std::optional<store::OriginKey> origin = std::nullopt,
                              std::optional<Id128> claimed_key = std::nullopt) {
  auto writer = store::testing::MustBegin(store, name);
  store::Manifest manifest = store::testing::FullManifest();
  options.uid = manifest.job.uid;
  store::testing::WriteFile(writer->cpu_path() + "/pages-1.img", contents.pages);
  for (const auto& [path, data] : contents.files) {
    auto fd = writer->AddFile(path);
    EXPECT_TRUE(fd && WriteAll(fd->get(), data));
  }
  store::BlockSource source{{0, kTestAddress, contents.gpu.size(), kTestBlock, {}, 4711},
                            contents.gpu};
  if (!contents.gpu.empty()) {
    auto blocks = store::WriteBlocks(*writer, names, {source}, options);
    EXPECT_TRUE(blocks) << blocks.error().ToString();
    blocks->DescribeIn(manifest);
  }
  auto pages = store::WritePages(*writer, names, options);
  EXPECT_TRUE(pages) << pages.error().ToString();
  pages->DescribeIn(manifest);
  if (claimed_key) manifest.unit_naming->key_id = *claimed_key;
  store::CommitOptions commit;
  commit.origin = origin;
  auto status = writer->Commit(manifest, commit);
  EXPECT_TRUE(status) << status.error().ToString();
  return writer->path();
}

// Verifies a local image and returns all its contents.
inline Contents ReadImage(const std::string& path) {
  Contents contents;
  auto image = store::ImageReader::Open(path);
  if (!image) {
    ADD_FAILURE() << image.error().ToString();
    return contents;
  }
  auto report = (*image)->Verify(store::VerifyLevel::kFull);
  EXPECT_TRUE(report && report->ok()) << report->ToStatus(path).error().ToString();
  const store::Manifest& manifest = (*image)->manifest();
  for (const store::File& file : manifest.files) {
    contents.files[file.path] = *ReadFile(path + "/" + file.path);
  }
  if (!manifest.ranges.empty()) {
    auto units = store::UnitReader::Open(**image, {{0}, false, true});
    contents.gpu.resize(manifest.ranges[0].size_bytes, 'x');
    char* const outputs[] = {contents.gpu.data()};
    EXPECT_TRUE(units && units->Read(outputs, nullptr, nullptr));
  }
  if (!manifest.page_files.empty()) {
    TempStore folder;
    auto units = store::UnitReader::Open(**image, {{}, true, false});
    auto fd = Open(folder.path(), O_RDONLY | O_DIRECTORY);
    EXPECT_TRUE(units && fd && units->MakeFiles(fd->get(), nullptr));
    contents.pages = *ReadFile(folder / "pages-1.img");
  }
  return contents;
}

inline PushOptions PushWith(const store::UnitNames& names) {
  PushOptions options;
  options.names = &names;
  options.trusts_index = true;
  return options;
}

// A plain repository in `objects`.
inline Repository MustCreate(objects::ObjectStore& objects, const Sealing& sealing) {
  auto info = CreateRepository(objects, false, "");
  EXPECT_TRUE(info) << info.error().ToString();
  return Repository(objects, info ? *info : RepositoryInfo{}, sealing);
}

class RepositoryTest : public ::testing::Test {
 protected:
  Result<PushReport> PushImage(const std::string& name, const Contents& contents,
                               const store::UnitNames& names) {
    const std::string path = WriteImage(local_.path(), name, contents, names);
    auto image = store::ImageReader::Open(path);
    if (!image) return Fail(std::move(image).error());
    return Push(repository_, **image, name, PushWith(names));
  }
  PushReport MustPush(const std::string& name, const Contents& contents) {
    auto report = PushImage(name, contents, names_);
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : PushReport{};
  }
  Result<PullReport> PullImage(const std::string& name, const std::string& store,
                               const store::UnitNames& names) {
    PullOptions options;
    options.names = &names;
    return Pull(repository_, name, store, name, options);
  }
  // Pulls an image to an empty store and compares it.
  void ExpectPulls(const std::string& name, const Contents& contents) {
    TempStore other;
    auto report = PullImage(name, other.path(), names_);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_TRUE(ReadImage(report->path) == contents) << name;
  }
  std::vector<std::string> Keys(const std::string& prefix = "") const {
    std::vector<std::string> keys;
    for (const auto& [key, data] : objects_.Objects()) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    return keys;
  }
  GcReport MustCollect(const GcOptions& options = {}) {
    auto report = CollectGarbage(repository_, options);
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : GcReport{};
  }
  // Removes everything that was left behind by killed processes, regardless of its age. Nothing
  // else may use the repository meanwhile.
  GcReport MustCollectAll() {
    GcOptions options;
    options.abandoned = std::chrono::nanoseconds(-1'000'000'000);
    return MustCollect(options);
  }

  MemoryStore objects_;
  const std::unique_ptr<Sealing> sealing_ = PlainSealing();
  const Repository repository_ = MustCreate(objects_, *sealing_);
  const store::UnitNames names_ = NamesOf(1);
  TempStore local_;
};

}  // namespace stasis::repository::testing
