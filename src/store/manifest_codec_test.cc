#include "store/manifest_codec.h"

#include <gtest/gtest.h>

#include <functional>

#include "stasis/image/v1/manifest.pb.h"
#include "store/image_testing.h"
#include "store/manifest_check.h"

namespace stasis::store {
namespace {

Manifest Valid() {
  Manifest m = testing::FullManifest();
  m.image_id = Id128::FromRaw("0123456789abcdef");
  m.created_unix_ns = 1'700'000'000'000'000'000;
  m.files = {{"cpu/a.img", 5, {Id128::FromRaw("fedcba9876543210")}}, {"log/x", 0, {}}};
  m.unit_naming = UnitNaming{"poly127-4k-aes256", Id128::FromRaw("kkkkkkkkkkkkkkkk")};
  m.ranges = {
      {0, 0x7f0000000000, 3ull << 20, kBlockBytes, {{UnitRun::kZeros, 0, 1}, {0, 7, 1}}, 4711}};
  m.page_files = {{"cpu/pages-1.img", 3 * 4096, {{1, 5, 2}, {UnitRun::kZeros, 0, 1}}}};
  m.packs = {{Id128::FromRaw("pppppppppppppppp"), 1 << 20, Id128::FromRaw("cccccccccccccccc"),
              kBlockBytes, true, 1, 4096, 1'700'000'000'000'000'000},
             {Id128::FromRaw("qqqqqqqqqqqqqqqq"), 1 << 20, Id128::FromRaw("cccccccccccccccc"),
              kPageBytes, false, 2, 8192, 1'700'000'000'000'000'000}};
  return m;
}

TEST(ManifestCodecTest, EveryFieldComesBack) {
  Manifest m = Valid();
  auto body = EncodeManifest(m);
  ASSERT_TRUE(body) << body.error().ToString();
  auto again = DecodeManifest(*body);
  ASSERT_TRUE(again) << again.error().ToString();
  // The encoding depends on all fields, so equal bytes mean equal manifests.
  EXPECT_EQ(*EncodeManifest(*again), *body);
  EXPECT_EQ(again->job.argv, m.job.argv);
  EXPECT_EQ(again->processes[0].recorded_state, GpuState::kRunning);
  EXPECT_EQ(again->processes[0].visible_gpu_uuids, m.processes[0].visible_gpu_uuids);
  EXPECT_EQ(again->processes[1].ppid, 4711);
  EXPECT_EQ(again->externals[0].path, "/dev/pts/2");
  EXPECT_TRUE(again->ranges[0].runs[0].is_zero());
  EXPECT_EQ(again->ranges[0].runs[1].first, 7u);
  EXPECT_EQ(again->page_files[0].runs[0].pack, 1u);
  EXPECT_EQ(again->packs[1].unit_bytes, kPageBytes);
  EXPECT_EQ(again->packs[0].checked_unix_ns, m.packs[0].checked_unix_ns);
  EXPECT_EQ(again->phases[1].parallel_group, "carry");
  EXPECT_EQ(again->required_files[0].build_id, "\x01\x02");
}

TEST(ManifestCodecTest, PathsThatLeaveTheImageAreRefused) {
  for (std::string path :
       {"", "cpu", "cpu/", "/cpu/a", "../a", "cpu/..", "cpu/.", "cpu/../../etc/passwd", "cpu/a/b",
        "cpu//a", "manifest.pb", "other/a", "cpu/a\nb", "cpu/\x1b[31m"}) {
    EXPECT_FALSE(CheckFilePath(path)) << path;
  }
  EXPECT_FALSE(CheckFilePath("cpu/" + std::string(256, 'a')));
  EXPECT_FALSE(CheckFilePath(std::string("cpu/a\0b", 7)));
  EXPECT_TRUE(CheckFilePath("cpu/" + std::string(255, 'a')));
  EXPECT_TRUE(CheckFilePath("packs/0.pack"));
}

TEST(ManifestCodecTest, RulesAreKeptInBothDirections) {
  struct Row {
    const char* what;
    std::function<void(image::v1::Manifest&)> change;
  };
  const Row rows[] = {
      {"no id", [](auto& m) { m.clear_image_id(); }},
      {"short id", [](auto& m) { m.set_image_id("x"); }},
      {"path with ..", [](auto& m) { m.mutable_files(0)->set_path("../x"); }},
      {"absolute path", [](auto& m) { m.mutable_files(0)->set_path("/etc/passwd"); }},
      {"a file twice", [](auto& m) { *m.add_files() = m.files(0); }},
      {"enormous file", [](auto& m) { m.mutable_files(0)->set_size_bytes(~0ull); }},
      {"file of wrong size", [](auto& m) { m.mutable_files(0)->set_size_bytes(1ull << 40); }},
      {"broken checksums", [](auto& m) { m.mutable_files(0)->set_checksums("x"); }},
      {"no chunk size", [](auto& m) { m.set_chunk_bytes(0); }},
      {"odd chunk size", [](auto& m) { m.set_chunk_bytes(5000); }},
      {"huge chunk size", [](auto& m) { m.set_chunk_bytes(1u << 31); }},
      {"range on no GPU", [](auto& m) { m.mutable_ranges(0)->set_gpu(1); }},
      {"range of wrong size", [](auto& m) { m.mutable_ranges(0)->set_size_bytes(1ull << 60); }},
      {"range past the end", [](auto& m) { m.mutable_ranges(0)->set_address(~0ull); }},
      {"range without blocks", [](auto& m) { m.mutable_ranges(0)->set_block_bytes(0); }},
      {"range with too large blocks",
       [](auto& m) { m.mutable_ranges(0)->set_block_bytes(kBlockBytes + 1); }},
      {"units without naming", [](auto& m) { m.clear_unit_naming(); }},
      {"a pack in files", [](auto& m) { m.mutable_files(1)->set_path("packs/x"); }},
      {"a pack twice", [](auto& m) { *m.add_packs() = m.packs(0); }},
      {"a pack without id", [](auto& m) { m.mutable_packs(0)->clear_id(); }},
      {"a pack of zero id", [](auto& m) { m.mutable_packs(0)->set_id(std::string(16, '\0')); }},
      {"a pack that nothing needs",
       [](auto& m) {
         *m.add_packs() = m.packs(0);
         m.mutable_packs(2)->set_id("rrrrrrrrrrrrrrrr");
       }},
      {"an enormous pack", [](auto& m) { m.mutable_packs(0)->set_size_bytes(~0ull); }},
      {"a pack used beyond its size", [](auto& m) { m.mutable_packs(0)->set_used_bytes(2 << 20); }},
      {"a pack of another unit size", [](auto& m) { m.mutable_packs(0)->set_unit_bytes(8192); }},
      {"blocks in a pack of pages",
       [](auto& m) { m.mutable_ranges(0)->mutable_runs()->set_packs(1, 2); }},
      {"pages in a pack of blocks",
       [](auto& m) { m.mutable_page_files(0)->mutable_runs()->set_packs(0, 1); }},
      {"a run in no pack", [](auto& m) { m.mutable_ranges(0)->mutable_runs()->set_packs(1, 3); }},
      {"zeros with a number",
       [](auto& m) { m.mutable_ranges(0)->mutable_runs()->set_firsts(0, 1); }},
      {"an empty run", [](auto& m) { m.mutable_ranges(0)->mutable_runs()->set_units(0, 0); }},
      {"a run of units past the bound",
       [](auto& m) { m.mutable_ranges(0)->mutable_runs()->set_firsts(1, kMaxPackUnits); }},
      {"more units than bytes",
       [](auto& m) { m.mutable_page_files(0)->mutable_runs()->set_units(0, 3); }},
      {"lists of different lengths",
       [](auto& m) { m.mutable_ranges(0)->mutable_runs()->add_packs(0); }},
      {"a page file that is also a file",
       [](auto& m) { m.mutable_page_files(0)->set_path("cpu/a.img"); }},
      {"a page file elsewhere", [](auto& m) { m.mutable_page_files(0)->set_path("log/a"); }},
      {"a page file with a part of a page",
       [](auto& m) { m.mutable_page_files(0)->set_size_bytes(3 * 4096 - 1); }},
      {"a process twice", [](auto& m) { *m.add_processes() = m.processes(0); }},
      {"two processes of one number in their namespace",
       [](auto& m) {
         for (int i : {0, 1}) m.mutable_processes(i)->set_namespace_pid(7);
       }},
      {"a process restored as another",
       [](auto& m) {
         m.mutable_processes(0)->set_namespace_pid(0);
         m.mutable_processes(1)->set_namespace_pid(m.processes(0).pid());
       }},
      {"a negative number in its namespace",
       [](auto& m) { m.mutable_processes(0)->set_namespace_pid(-1); }},
      {"process 0", [](auto& m) { m.mutable_processes(0)->set_pid(0); }},
      {"unknown GPU state",
       [](auto& m) {
         m.mutable_processes(0)->set_recorded_state(static_cast<image::v1::Process::GpuState>(99));
       }},
      {"an invalid time",
       [](auto& m) { m.mutable_phases(0)->set_seconds(std::numeric_limits<double>::quiet_NaN()); }},
      {"too many GPUs",
       [](auto& m) {
         for (int i = 0; i < 5000; ++i) m.add_gpus();
       }},
      {"a giant process",
       [](auto& m) { m.mutable_processes(0)->set_exe(std::string(1 << 20, 'x')); }},
  };
  std::string body = *EncodeManifest(Valid());
  for (const Row& row : rows) {
    image::v1::Manifest message;
    ASSERT_TRUE(message.ParseFromString(body));
    row.change(message);
    auto decoded = DecodeManifest(message.SerializeAsString());
    ASSERT_FALSE(decoded) << row.what;
    EXPECT_EQ(decoded.error().domain, Domain::kImage) << row.what;
    EXPECT_TRUE(decoded.error().code == Code::kInvalidArgument ||
                decoded.error().code == Code::kUnimplemented)
        << row.what << ": " << decoded.error().ToString();
  }
  Manifest bad = Valid();
  bad.files[0].path = "../x";
  EXPECT_FALSE(EncodeManifest(bad));
  bad = Valid();
  bad.processes[0].exe = std::string(1 << 20, 'x');  // could be written but not read
  EXPECT_FALSE(EncodeManifest(bad));
}

// Each record has only two bytes. The count is rejected before memory is allocated.
TEST(ManifestCodecTest, MillionsOfEmptyRecordsAreRefused) {
  std::string body;
  for (int i = 0; i < 3'000'000; ++i) body += std::string("\x5a\x00", 2);  // field 11, empty
  auto decoded = DecodeManifest(body);
  ASSERT_FALSE(decoded);
  EXPECT_NE(decoded.error().message.find("files"), std::string::npos);
  EXPECT_FALSE(DecodeManifest(std::string((64 << 20) + 1, '\0')));
}

TEST(ManifestCodecTest, BytesThatAreNotProtobufAreRefused) {
  for (std::string body :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string("\x1a\x7f", 2),
        std::string("\x1b"), std::string("\x1a"), testing::Noise(1000)}) {
    auto decoded = DecodeManifest(body);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, Code::kDataLoss);
  }
}

// The address sanitizer detects errors here that a normal build does not.
TEST(ManifestCodecTest, MutatedBodiesAreReadOrRefused) {
  const std::string body = *EncodeManifest(Valid());
  uint32_t seed = 1;
  auto random = [&](size_t below) {
    seed = seed * 1664525 + 1013904223;
    return static_cast<size_t>((uint64_t{seed} * below) >> 32);
  };
  size_t read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bad = body;
    for (size_t n = 1 + random(4); n > 0; --n) {
      size_t at = random(bad.size());
      switch (random(4)) {
        case 0:
          bad[at] = static_cast<char>(random(256));
          break;
        case 1:
          bad.erase(at, 1 + random(8));
          break;
        case 2:
          bad.insert(at, random(16), static_cast<char>(0xff));
          break;
        default:
          bad.insert(at, body.substr(random(body.size()), random(64)));
      }
      if (bad.empty()) bad = body;
    }
    auto decoded = DecodeManifest(bad);
    if (!decoded) continue;
    ++read;
    ASSERT_TRUE(CheckManifest(*decoded));
  }
  EXPECT_GT(read, 100u) << "some changes do no harm; none at all would be suspicious";
}

TEST(ManifestCodecTest, PrintableTextCannotControlATerminal) {
  EXPECT_EQ(Printable("plain, \u00e4\u20ac\U0001f600"), "plain, \u00e4\u20ac\U0001f600");
  EXPECT_EQ(Printable("a\x1b[31m\n\x7f"), "a?[31m??");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "??31m")
      << "CSI as one character";
  EXPECT_EQ(Printable("\xff \xc3 \xe0\x80\x80 \xed\xa0\x80"), "? ? ??? ???");
  EXPECT_EQ(Printable("\xe2\x82"), "??");
  EXPECT_EQ(Printable("ab\u20ac", 4), "ab...");
}

// A later Stasis may add fields.
TEST(ManifestCodecTest, UnknownFieldsAreSkipped) {
  std::string body = *EncodeManifest(Valid());
  body += std::string("\xfa\x3f\x03", 3) + "new";  // field 1023
  EXPECT_TRUE(DecodeManifest(body));
}

}  // namespace
}  // namespace stasis::store
