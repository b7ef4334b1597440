// tests/image/golden/v1 is an image of format 1 from the time when the format was new. It must
// always open, verify and have the same contents. To write the image of a new format once, run
//   STASIS_WRITE_GOLDEN=tests/image/golden store_test --gtest_filter='GoldenTest.*'
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>

#include "base/file.h"
#include "store/beneath.h"
#include "store/page_writer.h"
#include "store/shared_units_testing.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

// One length for every branch of XXH3, which selects its algorithm by the length of the input.
constexpr size_t kLengths[] = {0,  1,  2,  3,   4,   5,   8,   9,   16,  17,  32,   33,   64,
                               65, 96, 97, 128, 129, 159, 160, 240, 241, 256, 1024, 1025, 5000};

std::string FileOfLength(size_t length) { return Noise(length, static_cast<uint32_t>(length)); }

BlockSecret GoldenSecret() {
  BlockSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  return secret;
}

constexpr char kAgentName[] = "agent/00112233445566778899aabbccddeeff00112233.so";
constexpr uint64_t kAddress = 0x7f0000000000;

std::string Text(char letter, size_t size) {
  std::string text;
  while (text.size() < size) text += std::string("a line of ") + letter + "; ";
  text.resize(size);
  return text;
}
std::string BlockOf(char letter) { return Text(letter, kBlock); }
std::string PageOf(char letter) { return Text(letter, kPageBytes); }
std::string PageOfNoise(uint32_t seed) { return Noise(kPageBytes, seed); }

// Uncompressed blocks, blocks in lz4 and zstd, a zero block, a repeated block, and a short one.
std::string GoldenMemory() {
  return Noise(kBlock, 1) + BlockOf('L') + std::string(kBlock, '\0') + BlockOf('Z') + BlockOf('L') +
         Noise(kBlock, 4) + Noise(4096 + 40, 2);
}
// Pages of the same kinds, except a short one.
std::string GoldenPages() {
  return PageOfNoise(11) + PageOf('L') + std::string(2 * kPageBytes, '\0') + PageOf('Z') +
         PageOf('z') + PageOfNoise(12) + PageOf('L') + PageOfNoise(13);
}

Manifest GoldenManifest() {
  Manifest m = FullManifest();
  m.host = {"node-1",      "6.1.0-18-amd64", "x86_64",  "c4b3d1d0-0000-4000-8000-0123456789ab",
            1'000'000'001, 1'000'000'000,    4026531836};
  m.image_id = Id128::FromRaw("golden image  v1");
  return m;
}

// Returns the path of the written image.
std::string WriteImage(const std::string& store, const std::string& name, const std::string& memory,
                       const std::string& pages, Compression compression, bool is_golden = false) {
  auto image = MustBegin(store, name);
  WriteFile(image->cpu_path() + "/pages-1.img", pages);
  const UnitNames names(GoldenSecret());
  WriteOptions options;
  options.compression = compression;
  options.uid = GoldenManifest().job.uid;
  auto blocks = WriteBlocks(*image, names,
                            {{{0, kAddress, memory.size(), kBlock, {}, 4711}, memory}}, options);
  EXPECT_TRUE(blocks) << blocks.error().ToString();
  auto written = WritePages(*image, names, options);
  EXPECT_TRUE(written) << written.error().ToString();
  Manifest manifest = GoldenManifest();
  blocks->DescribeIn(manifest);
  written->DescribeIn(manifest);
  CommitOptions commit;
  if (is_golden) {
    for (size_t length : kLengths) {
      WriteFile(image->cpu_path() + "/length-" + std::to_string(length) + ".img",
                FileOfLength(length));
    }
    EXPECT_TRUE(image->AddLog("criu-dump.log", "(00.000001) Dumping finished successfully\n"));
    auto fd = image->AddFile(kAgentName);
    EXPECT_TRUE(fd && WriteAll(fd->get(), FileOfLength(1024)));
    commit.origin = OriginKey(GoldenSecret());
  }
  auto status = image->Commit(manifest, commit);
  EXPECT_TRUE(status) << status.error().ToString();
  return image->path();
}

// Writes earlier images. The golden image needs only a part of their units, so gc punches holes in
// their packs.
void WriteGolden(const std::string& store) {
  const std::string earlier[] = {
      WriteImage(store, "first", BlockOf('L') + Noise(kBlock, 3), PageOf('L') + PageOf('l'),
                 Compression::kLz4),
      WriteImage(store, "second", BlockOf('Z'), PageOf('Z') + PageOf('z'), Compression::kZstd),
      WriteImage(store, "third", Noise(kBlock, 4), PageOfNoise(12) + PageOfNoise(14),
                 Compression::kNone)};
  WriteImage(store, "v1", GoldenMemory(), GoldenPages(), Compression::kNone, true);
  for (const std::string& image : earlier) ASSERT_TRUE(DeleteImage(image));
  auto report = CollectGarbage(store);
  ASSERT_TRUE(report);
  ASSERT_GE(report->freed_units, 2u);
}

TEST(GoldenTest, AnImageOfFormat1IsStillRead) {
  if (const char* store = ::getenv("STASIS_WRITE_GOLDEN")) WriteGolden(store);
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v1");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->ok()) << report->ToStatus("v1").error().ToString();

  const OriginKey key(GoldenSecret()), other(BlockSecret{});
  EXPECT_EQ((*reader)->OriginBy(&key), Origin::kOwn);
  EXPECT_EQ((*reader)->OriginBy(&other), Origin::kOther);
  EXPECT_EQ((*reader)->origin_key_id(), key.id());

  const Manifest& m = (*reader)->manifest();
  const Manifest expected = GoldenManifest();
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
  EXPECT_EQ(m.unit_naming->function, kUnitNameFunction);
  EXPECT_EQ(m.unit_naming->key_id, UnitNames(GoldenSecret()).key().id());
  ASSERT_EQ(m.packs.size(), 8u);
  size_t linked = 0;
  for (const Pack& pack : m.packs) linked += pack.linked ? 1 : 0;
  EXPECT_EQ(linked, 6u);
}

TEST(GoldenTest, ItsContentsAreUnchanged) {
  auto reader = ImageReader::Open(STASIS_TESTS_DIR "/image/golden/v1");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto opened = (*reader)->OpenFile(kAgentName);
  ASSERT_TRUE(opened);
  std::string content(opened->size_bytes, '\0');
  ASSERT_TRUE(PreadAll(opened->fd.get(), content.data(), content.size(), 0));
  EXPECT_EQ(content, FileOfLength(1024));

  auto memory = RangeOf(**reader);
  ASSERT_TRUE(memory) << memory.error().ToString();
  EXPECT_EQ(*memory, GoldenMemory());
  TempStore folder;
  auto units = UnitReader::Open(**reader, {.page_files = true});
  ASSERT_TRUE(units) << units.error().ToString();
  ASSERT_TRUE(units->MakeFiles(OpenFolder(folder.path())->get(), nullptr));
  EXPECT_EQ(*ReadFile(folder / "pages-1.img"), GoldenPages());

  std::set<Codec> codecs;
  for (const Pack& pack : (*reader)->manifest().packs) {
    auto opened_pack = (*reader)->OpenPack(pack);
    ASSERT_TRUE(opened_pack);
    for (const Extent& extent : opened_pack->index().extents) codecs.insert(extent.codec);
  }
  EXPECT_EQ(codecs, (std::set<Codec>{Codec::kNone, Codec::kLz4, Codec::kZstd}));
}

}  // namespace
}  // namespace stasis::store
