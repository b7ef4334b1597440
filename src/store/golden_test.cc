// tests/image/golden/vN is an image of format N, kept as it was written when N was new. It must
// open, verify and mean the same for ever. When a new version comes, its image is written once with
//   STASIS_WRITE_GOLDEN=tests/image/golden store_test --gtest_filter='GoldenTest.*'
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>

#include "base/file.h"
#include "image/beneath.h"
#include "image/block_name.h"
#include "image/block_reader.h"
#include "image/image_testing.h"
#include "image/pack.h"
#include "image/page_reader.h"
#include "image/reader.h"
#include "image/writer.h"
#include "store/block_writer.h"
#include "store/gc.h"
#include "store/page_writer.h"
#include "store/store_folder.h"

namespace stasis::store {
namespace {

using image::BlockKey;
using image::BlockNaming;
using image::BlockReader;
using image::BlockSecret;
using image::Codec;
using image::Compression;
using image::DeviceRange;
using image::GpuState;
using image::Id128;
using image::ImageReader;
using image::kBlockNameFunction;
using image::Manifest;
using image::PackEntry;
using image::PackReader;
using image::VerifyLevel;
using image::testing::Noise;

// One for every branch of XXH3, which tells its inputs apart by their length.
constexpr size_t kLengths[] = {0,  1,  2,  3,   4,   5,   8,   9,   16,  17,  32,   33,   64,
                               65, 96, 97, 128, 129, 159, 160, 240, 241, 256, 1024, 1025, 5000};

std::string FileOfLength(size_t length) { return Noise(length, static_cast<uint32_t>(length)); }

std::vector<std::string> GoldenBlocks() { return {Noise(8192, 1), Noise(4096 + 40, 2)}; }

BlockSecret GoldenSecret() {
  BlockSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  return secret;
}

BlockKey GoldenKey() { return BlockKey(GoldenSecret()); }

Manifest GoldenManifest() {
  Manifest m = image::testing::FullManifest();
  m.host = {"node-1",      "6.1.0-18-amd64", "x86_64",  "c4b3d1d0-0000-4000-8000-0123456789ab",
            1'000'000'001, 1'000'000'000,    4026531836};
  m.image_id = Id128::FromRaw("golden image  v1");
  BlockKey key = GoldenKey();
  auto blocks = GoldenBlocks();
  m.block_naming = BlockNaming{kBlockNameFunction, key.id()};
  m.ranges = {{0,
               0x7f0000000000,
               2 * 8192 + 4096 + 40,
               8192,
               {key.Name(blocks[0]), Id128{}, key.Name(blocks[1])},
               4711}};
  return m;
}

// Feature 1.
constexpr char kAgentName[] = "agent/00112233445566778899aabbccddeeff00112233.so";

TEST(GoldenTest, AnImageOfFormat1WithAnAgentMeansWhatItMeant) {
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v1-agent");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report && report->ok());
  EXPECT_EQ((*reader)->format_version(), 1u);
  auto opened = (*reader)->OpenFile(kAgentName);
  ASSERT_TRUE(opened);
  std::string content(opened->size_bytes, '\0');
  ASSERT_TRUE(PreadAll(opened->fd.get(), content.data(), content.size(), 0));
  EXPECT_EQ(content, FileOfLength(1024));
}

// Feature 2.
void WriteGoldenOrigin(const std::string& store) {
  auto image = image::testing::MustBegin(store, "v3-origin");
  image::testing::WriteFile(image->cpu_path() + "/inventory.img", FileOfLength(100));
  Manifest manifest = image::testing::FullManifest();
  manifest.host = GoldenManifest().host;
  manifest.image_id = Id128::FromRaw("golden   origin ");
  image::CommitOptions options;
  options.origin = image::OriginKey(GoldenSecret());
  ASSERT_TRUE(image->Commit(manifest, options));
}

TEST(GoldenTest, AnImageWithAnOriginMacMeansWhatItMeant) {
  if (const char* store = ::getenv("STASIS_WRITE_GOLDEN")) WriteGoldenOrigin(store);
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v3-origin");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report && report->ok());
  const image::OriginKey key(GoldenSecret()), other(BlockSecret{});
  EXPECT_EQ((*reader)->OriginBy(&key), image::Origin::kOwn);
  EXPECT_EQ((*reader)->OriginBy(&other), image::Origin::kOther);
  EXPECT_EQ((*reader)->origin_key_id(), key.id());
}

TEST(GoldenTest, AnImageOfFormat1MeansWhatItMeant) {
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v1");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->ok()) << report->ToStatus("v1").error().ToString();

  const Manifest& m = (*reader)->manifest();
  Manifest expected = GoldenManifest();
  EXPECT_EQ((*reader)->format_version(), 1u);
  EXPECT_EQ(m.image_id, expected.image_id);
  EXPECT_EQ(m.host.boot_id, expected.host.boot_id);
  EXPECT_EQ(m.host.boottime_ns, expected.host.boottime_ns);
  EXPECT_EQ(m.host.pid_namespace, expected.host.pid_namespace);
  EXPECT_EQ(m.software.driver_version, "580.159.04");
  EXPECT_EQ(m.software.driver_kind, "softgpu");
  EXPECT_EQ(m.job.id, "llama");
  EXPECT_EQ(m.job.argv, expected.job.argv);
  EXPECT_EQ(m.job.root_pid, 4711);
  EXPECT_TRUE(m.job.leave_running && m.job.suspended);
  ASSERT_EQ(m.processes.size(), 2u);
  EXPECT_EQ(m.processes[0].recorded_state, GpuState::kRunning);
  EXPECT_EQ(m.processes[0].device_bytes, 77u);
  EXPECT_EQ(m.processes[1].comm, "helper");
  EXPECT_EQ(m.gpus[0].used_bytes, 1ull << 30);
  EXPECT_EQ(m.externals[0].key, "tty[1b:2]");
  EXPECT_EQ(m.criu.tcp, "close");
  EXPECT_EQ(m.criu.others, expected.criu.others);
  EXPECT_EQ(m.phases[1].seconds, 1.5);
  EXPECT_EQ(m.phases[1].parallel_group, "carry");
  EXPECT_EQ(m.required_files[0].path, "/lib/libc.so.6");
  EXPECT_EQ(m.files.size(), std::size(kLengths) + 2);
  ASSERT_EQ(m.ranges.size(), 1u);
  EXPECT_EQ(m.ranges[0].blocks, expected.ranges[0].blocks);
  EXPECT_EQ(m.block_naming->key_id, expected.block_naming->key_id);

  auto pack = PackReader::Open(*(*reader)->OpenFile("gpu/0.pack"), "gpu/0.pack");
  ASSERT_TRUE(pack) << pack.error().ToString();
  for (const std::string& block : GoldenBlocks()) {
    const PackEntry* entry = pack->Find(GoldenKey().Name(block));
    ASSERT_NE(entry, nullptr);
    std::string out(entry->logical_bytes, '\0');
    ASSERT_TRUE(pack->Read(*entry, out.data()));
    EXPECT_EQ(out, block);
  }
}

// Format 2: blocks as they are, in lz4 and in zstd; packs of earlier images, one with a hole;
// zeros; a block that is in the image twice.
constexpr uint32_t kBlock = 8192;
constexpr uint64_t kAddress = 0x7f0000000000;

std::string Text(char letter) {
  std::string text;
  while (text.size() < kBlock) text += std::string("a line of ") + letter + "; ";
  text.resize(kBlock);
  return text;
}

std::string GoldenMemory() {
  return Noise(kBlock, 1) + Text('L') + std::string(kBlock, '\0') + Text('Z') + Text('L') +
         Noise(kBlock, 4) + Noise(4096 + 40, 2);
}

std::string WriteWithBlocks(const std::string& store, const std::string& name,
                            const std::string& memory, Compression compression,
                            bool with_files = false) {
  auto image = image::testing::MustBegin(store, name);
  BlockWriterOptions options;
  options.compression = compression;
  options.uid = GoldenManifest().job.uid;
  auto blocks = BlockWriter::Begin(*image, GoldenKey(), options);
  DeviceRange range{0, kAddress, memory.size(), kBlock, {}, 4711};
  EXPECT_TRUE(blocks && blocks->Add(range, memory));
  auto written = blocks->Finish();
  EXPECT_TRUE(written);
  Manifest manifest = GoldenManifest();
  manifest.image_id = Id128::FromRaw("golden image  v2");
  written->DescribeIn(manifest);
  if (with_files) {
    for (size_t length : kLengths) {
      image::testing::WriteFile(image->cpu_path() + "/length-" + std::to_string(length) + ".img",
                                FileOfLength(length));
    }
    EXPECT_TRUE(image->AddLog("criu-dump.log", "(00.000001) Dumping finished successfully\n"));
    auto fd = image->AddFile(kAgentName);
    EXPECT_TRUE(fd && WriteAll(fd->get(), FileOfLength(1024)));
  }
  auto status = image->Commit(manifest, {});
  EXPECT_TRUE(status) << status.error().ToString();
  return image->path();
}

void WriteGolden2(const std::string& store) {
  std::string first =
      WriteWithBlocks(store, "first", Text('L') + Noise(kBlock, 3), Compression::kLz4);
  std::string second = WriteWithBlocks(store, "second", Text('L') + Text('Z'), Compression::kZstd);
  WriteWithBlocks(store, "v2", GoldenMemory(), Compression::kNone, true);
  ASSERT_TRUE(DeleteImage(first) && DeleteImage(second));
  auto report = CollectGarbage(store);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->freed_blocks, 1u);
}

TEST(GoldenTest, AnImageOfFormat2MeansWhatItMeant) {
  if (const char* store = ::getenv("STASIS_WRITE_GOLDEN")) WriteGolden2(store);
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v2");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->ok()) << report->ToStatus("v2").error().ToString();
  EXPECT_EQ((*reader)->format_version(), 2u);
  const Manifest& m = (*reader)->manifest();
  EXPECT_EQ(m.image_id, Id128::FromRaw("golden image  v2"));
  EXPECT_EQ(m.files.size(), std::size(kLengths) + 2);
  ASSERT_EQ(m.packs.size(), 3u);
  EXPECT_EQ(m.packs[0].used_blocks, 3u);
  EXPECT_FALSE(m.packs[0].linked);
  EXPECT_TRUE(m.packs[1].linked && m.packs[2].linked);
  ASSERT_EQ(m.ranges.size(), 1u);
  EXPECT_TRUE(m.ranges[0].blocks[2].IsZero());
  EXPECT_EQ(m.ranges[0].blocks[1], m.ranges[0].blocks[4]);

  auto blocks = BlockReader::Open(**reader);
  ASSERT_TRUE(blocks) << blocks.error().ToString();
  std::set<Codec> codecs;
  std::string memory(m.ranges[0].size_bytes, 'x');
  for (size_t i = 0; i < m.ranges[0].blocks.size(); ++i) {
    ASSERT_TRUE(blocks->Read(m.ranges[0], i, memory.data() + i * kBlock));
    if (i != 2) codecs.insert(blocks->Find(m.ranges[0], i)->entry->codec);
  }
  EXPECT_EQ(memory, GoldenMemory());
  EXPECT_EQ(codecs, (std::set<Codec>{Codec::kNone, Codec::kLz4, Codec::kZstd}));
}

// Format 3: CPU memory in pages, as they are, in lz4 and in zstd; a pack of an earlier image with a
// hole; zeros; a page that is there twice.
std::string GoldenPage(char letter) {
  std::string page;
  while (page.size() < image::kPageBytes) page += std::string("a page of ") + letter + "; ";
  page.resize(image::kPageBytes);
  return page;
}

std::string GoldenNoise(uint32_t seed) { return Noise(image::kPageBytes, seed); }

std::string GoldenPages() {
  return GoldenNoise(11) + GoldenPage('L') + std::string(2 * image::kPageBytes, '\0') +
         GoldenPage('Z') + GoldenPage('z') + GoldenNoise(12) + GoldenPage('L') + GoldenNoise(13);
}

std::string WriteWithPages(const std::string& store, const std::string& name,
                           const std::string& pages, Compression compression) {
  auto image = image::testing::MustBegin(store, name);
  image::testing::WriteFile(image->cpu_path() + "/pages-1.img", pages);
  image::testing::WriteFile(image->cpu_path() + "/inventory.img", "what else CRIU writes");
  BlockWriterOptions options;
  options.compression = compression;
  options.uid = GoldenManifest().job.uid;
  auto written = WritePages(*image, GoldenKey(), options);
  EXPECT_TRUE(written) << written.error().ToString();
  Manifest manifest = image::testing::FullManifest();
  manifest.host = GoldenManifest().host;
  manifest.image_id = Id128::FromRaw("golden image  v3");
  written->DescribeIn(manifest);
  auto status = image->Commit(manifest, {});
  EXPECT_TRUE(status) << status.error().ToString();
  return image->path();
}

void WriteGolden3(const std::string& store) {
  const std::string gone = GoldenPage('l');
  const std::string first =
      WriteWithPages(store, "first", GoldenPage('L') + gone, Compression::kLz4);
  const std::string second =
      WriteWithPages(store, "second", GoldenPage('Z') + GoldenPage('z'), Compression::kZstd);
  const std::string third =
      WriteWithPages(store, "third", GoldenNoise(12) + GoldenNoise(14), Compression::kNone);
  WriteWithPages(store, "v3", GoldenPages(), Compression::kNone);
  for (const std::string& image : {first, second, third}) ASSERT_TRUE(DeleteImage(image));
  auto report = CollectGarbage(store);
  ASSERT_TRUE(report);
  ASSERT_GE(report->freed_blocks, 1u);  // other images may lie there
}

TEST(GoldenTest, AnImageOfFormat3MeansWhatItMeant) {
  if (const char* store = ::getenv("STASIS_WRITE_GOLDEN")) WriteGolden3(store);
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v3");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->ok()) << report->ToStatus("v3").error().ToString();
  EXPECT_EQ((*reader)->format_version(), 3u);
  const Manifest& m = (*reader)->manifest();
  EXPECT_EQ(m.image_id, Id128::FromRaw("golden image  v3"));
  ASSERT_EQ(m.packs.size(), 4u);
  EXPECT_EQ(m.packs[3].used_blocks, 2u);  // our own
  EXPECT_FALSE(m.packs[3].linked);
  EXPECT_TRUE(m.packs[0].linked && m.packs[1].linked && m.packs[2].linked);
  ASSERT_EQ(m.page_files.size(), 1u);
  EXPECT_EQ(m.page_files[0].path, "cpu/pages-1.img");
  EXPECT_EQ(m.page_files[0].runs.size(), 7u);

  image::testing::TempStore folder;
  auto pages = image::PageReader::Open(**reader);
  ASSERT_TRUE(pages) << pages.error().ToString();
  ASSERT_TRUE(pages->MakeFiles(image::OpenFolder(folder.path())->get(), nullptr));
  EXPECT_EQ(*ReadFile(folder / "pages-1.img"), GoldenPages());
}

}  // namespace
}  // namespace stasis::store
