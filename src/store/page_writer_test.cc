// CPU memory that several images share: split into pages, each stored once, linked, and restored.
#include "store/page_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>

#include "store/beneath.h"
#include "store/shared_units_testing.h"
#include "store/unit_reader.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

constexpr uint64_t kPage = kPageBytes;  // for multiplications in 64 bits
constexpr size_t kLarge = 17 << 20;     // enough to become a pack itself

std::string Pages(uint32_t seed, size_t count) {
  std::string memory;
  for (size_t i = 0; i < count; ++i) {
    memory += Noise(kPageBytes, seed * 7919 + static_cast<uint32_t>(i) * 104729);
  }
  return memory;
}

// Generated once, because generating 17 MiB of random data takes a long time.
const std::string& LargeMemory() {
  static const std::string memory = Pages(3, kLarge / kPageBytes);
  return memory;
}

using Files = std::map<std::string, std::string>;

class PageWriterTest : public SharedUnitsTest {
 protected:
  void DumpFiles(const std::string& name, const Files& files, const WriteOptions& options) {
    auto writer = MustBegin(store_.path(), name);
    WriteFile(writer->cpu_path() + "/inventory.img", "what else CRIU writes");
    std::vector<FileInMemory> in_memory;
    for (const auto& [file, content] : files) {
      if (in_memory_.contains(file)) {
        in_memory.push_back({file, content});
      } else {
        WriteFile(writer->cpu_path() + "/" + file, content);
      }
    }
    auto written = WritePages(*writer, Key(), options, in_memory);
    ASSERT_TRUE(written) << written.error().ToString();
    last_ = std::move(*written);
    Manifest manifest = FullManifest();
    manifest.job.uid = options.uid;
    manifest.job.id = options.job_id;
    last_.DescribeIn(manifest);
    auto status = writer->Commit(manifest, {});
    ASSERT_TRUE(status) << status.error().ToString();
  }
  void DumpFiles(const std::string& name, const Files& files) { DumpFiles(name, files, Options()); }

  // Returns the files that CRIU would find in its folder.
  Files Restored(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    EXPECT_TRUE(reader) << reader.error().ToString();
    TempStore folder;
    auto fd = OpenFolder(folder.path());
    auto pages = UnitReader::Open(**reader, {.page_files = true});
    EXPECT_TRUE(pages) << pages.error().ToString();
    if (!pages) return {};
    auto status = pages->MakeFiles(fd->get(), nullptr);
    EXPECT_TRUE(status) << status.error().ToString();
    Files files;
    for (const std::string& file : Names(folder.path())) {
      files[file] = *ReadFile(folder / file, 1 << 28);
    }
    return files;
  }
  void ExpectIntact(const std::string& name, const Files& files) const {
    EXPECT_EQ(Findings(name), "") << name;
    EXPECT_TRUE(Restored(name) == files) << name;
  }
  std::string PackPath(const std::string& name, size_t index = 0) const {
    return store_ / name + "/" + Packs(name)[index].path();
  }
  uint64_t Blocks(const std::string& path) const {
    struct stat st;
    EXPECT_EQ(::stat(path.c_str(), &st), 0) << path;
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }

  std::set<std::string> in_memory_;  // files that are not in CRIU's folder
  WrittenUnits last_;
};

TEST_F(PageWriterTest, ASecondImageStoresThePagesThatChangedWhereverTheyLie) {
  const Files first = {{"pages-1.img", Pages(1, 500)}};
  DumpFiles("a", first);
  EXPECT_EQ(last_.stored_bytes, 500 * kPage);
  EXPECT_FALSE(PathExists(store_ / "a/cpu/pages-1.img"));
  EXPECT_TRUE(PathExists(store_ / "a/cpu/inventory.img"));
  // One page is changed, and two are inserted before it, so all later pages move.
  Files second = first;
  second["pages-1.img"].replace(100 * kPage, kPageBytes, Noise(kPageBytes, 77));
  second["pages-1.img"].insert(0, Pages(2, 2));
  DumpFiles("b", second);
  EXPECT_EQ(last_.stored_bytes, 3 * kPage);
  EXPECT_EQ(last_.shared_bytes, 499 * kPage);
  auto reader = ImageReader::Open(store_ / "b");
  // There are four runs, and one more for each position in the first image's pack where the pages
  // of two threads meet.
  EXPECT_LE((*reader)->manifest().page_files[0].runs.size(), 8u);
  reader->reset();
  ExpectIntact("a", first);
  ExpectIntact("b", second);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  ExpectIntact("b", second);
  auto options = Options();
  options.share = false;
  DumpFiles("c", second, options);
  EXPECT_EQ(last_.stored_bytes, 502 * kPage);
  EXPECT_EQ(last_.shared_bytes, 0u);
}

TEST_F(PageWriterTest, ZerosAndRepetitionsAreStoredOnceOrNever) {
  const std::string page = Noise(kPageBytes, 1);
  const Files files = {{"pages-1.img", page + std::string(40 * kPage, '\0') + page},
                       {"pages-2.img", std::string(3 * kPage, '\0')},
                       {"pages-3.img", page}};
  DumpFiles("a", files);
  EXPECT_EQ(last_.stored_bytes, kPageBytes);
  EXPECT_EQ(last_.zero_bytes, 43 * kPage);
  EXPECT_EQ(last_.repeated_bytes, 2 * kPage);
  ExpectIntact("a", files);
  DumpFiles("b", {{"pages-2.img", std::string(3 * kPage, '\0')}});
  EXPECT_TRUE(Packs("b").empty());
  ExpectIntact("b", {{"pages-2.img", std::string(3 * kPage, '\0')}});
}

TEST_F(PageWriterTest, OtherFilesStayAsTheyAre) {
  DumpFiles("a", {{"pages-1.img", "not a multiple of 4096"},
                  {"pages-.img", std::string(kPageBytes, 'x')},
                  {"pages-1x.img", std::string(kPageBytes, 'x')},
                  {"pages-2.img", ""}});
  EXPECT_EQ(Findings("a"), "");
  auto reader = ImageReader::Open(store_ / "a");
  EXPECT_TRUE((*reader)->manifest().page_files.empty());
  EXPECT_EQ((*reader)->manifest().files.size(), 5u);
}

TEST_F(PageWriterTest, ALargeFileBecomesAPackWhereItLies) {
  std::string memory = LargeMemory();
  memory.replace(50 * kPage, 20 * kPage, std::string(20 * kPage, '\0'));
  memory.replace(90 * kPage, kPageBytes, memory.substr(0, kPageBytes));
  const Files first = {{"pages-1.img", memory}};
  DumpFiles("a", first);
  ASSERT_EQ(Packs("a").size(), 1u);
  // The pack is CRIU's file, followed by an index.
  auto pack = ReadFile(PackPath("a"), 1 << 28);
  ASSERT_TRUE(pack);
  EXPECT_TRUE(std::string_view(*pack).substr(0, memory.size()) == memory);
  EXPECT_LT(pack->size(), memory.size() + memory.size() / 100);
  EXPECT_EQ(Packs("a")[0].used_units, kLarge / kPageBytes - 20);
  ExpectIntact("a", first);

  Files second = first;
  for (size_t i = 0; i < 40; ++i) {
    second["pages-1.img"].replace(i * 97 * kPage, kPageBytes,
                                  Noise(kPageBytes, static_cast<uint32_t>(i) + 1000));
  }
  DumpFiles("b", second);
  EXPECT_EQ(last_.stored_bytes, 40 * kPage);
  ExpectIntact("b", second);

  // The first gc frees the space between extents; pages that only `a` needs stay until `a` is
  // deleted.
  const uint64_t before = Blocks(PackPath("a"));
  EXPECT_GE(Gc().freed_bytes, 19 * kPage);
  EXPECT_EQ(Gc().freed_bytes, 0u);
  ExpectIntact("a", first);
  ExpectIntact("b", second);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  const auto report = Gc();
  EXPECT_GE(report.freed_bytes, 38 * kPage);
  EXPECT_LE(report.freed_bytes, 41 * kPage);
  EXPECT_LT(Blocks(PackPath("b", 0)), before);
  ExpectIntact("b", second);
  // Pages that have become holes are written again by an image that needs them.
  DumpFiles("c", first);
  EXPECT_GE(last_.new_bytes, 38 * kPage);
  ExpectIntact("c", first);
  ExpectIntact("b", second);
}

TEST_F(PageWriterTest, PagesInMemoryAreStoredAsThoseOfFilesAre) {
  const Files first = {{"pages-1.img", Pages(1, 300) + std::string(5 * kPage, '\0')},
                       {"pages-2.img", LargeMemory()},
                       {"pages-3.img", Pages(2, 40)}};
  in_memory_ = {"pages-1.img", "pages-2.img"};
  DumpFiles("a", first);
  EXPECT_EQ(last_.stored_bytes, 340 * kPage + kLarge);
  EXPECT_EQ(last_.zero_bytes, 5 * kPage);
  ExpectIntact("a", first);
  // No file of the image is a copy of the memory.
  EXPECT_EQ(Names(store_ / "a/cpu"), std::vector<std::string>{"inventory.img"});

  Files second = first;
  second["pages-1.img"].replace(100 * kPage, kPageBytes, Noise(kPageBytes, 77));
  second["pages-3.img"].insert(0, Pages(9, 2));
  in_memory_ = {"pages-3.img"};
  DumpFiles("b", second);
  EXPECT_EQ(last_.stored_bytes, 3 * kPage);
  ExpectIntact("b", second);
  auto options = Options();
  options.compression = Compression::kLz4;
  options.share = false;
  in_memory_ = {"pages-1.img", "pages-2.img", "pages-3.img"};
  DumpFiles("c", second, options);
  ExpectIntact("c", second);
}

TEST_F(PageWriterTest, OtherFilesInMemoryBecomeFiles) {
  in_memory_ = {"pages-1.img", "pages-2.img"};
  DumpFiles("a", {{"pages-1.img", "not a multiple of 4096"}, {"pages-2.img", ""}});
  EXPECT_EQ(Findings("a"), "");
  EXPECT_EQ(*ReadFile(store_ / "a/cpu/pages-1.img"), "not a multiple of 4096");
  EXPECT_EQ(*ReadFile(store_ / "a/cpu/pages-2.img"), "");
}

TEST_F(PageWriterTest, CompressedPagesAreShared) {
  std::string memory;
  for (int i = 0; i < 300; ++i) {
    std::string page = "page " + std::to_string(i) + " ";
    while (page.size() < kPageBytes) page += page;
    memory += page.substr(0, kPageBytes);
  }
  memory += Pages(1, 70);
  const Files files = {{"pages-1.img", memory}};
  for (auto [name, how] : {std::pair("lz4", Compression::kLz4), {"zstd", Compression::kZstd}}) {
    auto options = Options();
    options.compression = how;
    options.share = false;
    DumpFiles(name, files, options);
    EXPECT_EQ(last_.new_bytes, 370 * kPage);
    EXPECT_LT(last_.stored_bytes, 200 * kPage);
    ExpectIntact(name, files);
  }
  Files second = files;
  second["pages-1.img"].replace(7 * kPage, kPageBytes, Noise(kPageBytes, 9));
  DumpFiles("b", second);
  EXPECT_EQ(last_.stored_bytes, kPageBytes);
  ExpectIntact("b", second);
  ASSERT_TRUE(DeleteImage(store_ / "lz4"));
  ASSERT_TRUE(DeleteImage(store_ / "zstd"));
  Gc();
  ExpectIntact("b", second);
}

TEST_F(PageWriterTest, AFlippedBitIsFoundInNeededPagesAndTheyAreNotShared) {
  const Files first = {{"pages-1.img", Pages(1, 100)}};
  DumpFiles("a", first);
  Files second = first;
  second["pages-1.img"].replace(10 * kPage, kPageBytes, Noise(kPageBytes, 9));
  DumpFiles("b", second);
  const std::string path = PackPath("a");
  const uint64_t size = ReadFile(path)->size();
  for (uint64_t at : {uint64_t{5}, uint64_t{99 * kPage}, size - 1, size - 100, size - 200}) {
    Flip(path, at);
    EXPECT_NE(Findings("a"), "") << at;
    EXPECT_NE(Findings("b"), "") << at;
    Flip(path, at);
  }
  Flip(path, 10 * kPage + 7);
  EXPECT_NE(Findings("a").find("is damaged: unit 10 has checksum"), std::string::npos)
      << Findings("a");
  EXPECT_EQ(Findings("b"), "");
  auto reader = ImageReader::Open(store_ / "a");
  TempStore folder;
  auto status = UnitReader::Open(**reader, {.page_files = true})
                    ->MakeFiles(OpenFolder(folder.path())->get(), nullptr);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("(cpu/pages-1.img at byte 40960)"), std::string::npos)
      << status.error().message;
  reader->reset();
  DumpFiles("c", first);
  EXPECT_EQ(last_.new_bytes, 100 * kPage);
  ASSERT_EQ(last_.notes.size(), 1u);
  EXPECT_EQ(last_.notes[0].rfind("image a is damaged, so its packs/", 0), 0u) << last_.notes[0];
  ExpectIntact("c", first);
}

TEST_F(PageWriterTest, PagesOfOtherUsersAndKeysAreNotShared) {
  const Files files = {{"pages-1.img", Pages(1, 20)}};
  DumpFiles("a", files);
  auto options = Options();
  options.uid = 1001;
  DumpFiles("b", files, options);
  EXPECT_EQ(last_.shared_bytes, 0u);
  EXPECT_EQ(Packs("b").size(), 1u);
}

// gc does not touch a pack that an unfinished dump has linked.
TEST_F(PageWriterTest, APackThatADumpIsAboutToReferToIsLeftAlone) {
  const Files first = {{"pages-1.img", Pages(1, 100)}};
  DumpFiles("a", first);
  auto writer = MustBegin(store_.path(), "b");
  WriteFile(writer->cpu_path() + "/pages-1.img", first.at("pages-1.img"));
  auto written = WritePages(*writer, Key(), Options());
  ASSERT_TRUE(written);
  EXPECT_EQ(written->shared_bytes, 100 * kPage);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  EXPECT_EQ(Gc().freed_bytes, 0u);
  Manifest manifest = FullManifest();
  written->DescribeIn(manifest);
  ASSERT_TRUE(writer->Commit(manifest, {}));
  ExpectIntact("b", first);
}

}  // namespace
}  // namespace stasis::store
