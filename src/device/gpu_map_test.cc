#include "device/gpu_map.h"

#include <gtest/gtest.h>

namespace stasis::device {
namespace {

Gpu MakeGpu(int index, const std::string& start, const std::string& name = "H200") {
  return {GpuUuid{"GPU-" + start + "0000-0000-0000-0000-000000000000"}, index, name, 1, 1};
}
const Gpu kA = MakeGpu(0, "aaaa"), kB = MakeGpu(1, "bbbb"), kC = MakeGpu(2, "cccc", "A100");
const std::vector<Gpu> kHere = {kA, kB, kC};

TEST(GpuMapTest, NamesAGpuByIndexUuidBeginningOrName) {
  for (const std::string& meant : {std::string("1"), kB.uuid.value, std::string("GPU-bbbb")}) {
    auto gpu = FindGpu(meant, kHere);
    ASSERT_TRUE(gpu) << meant;
    EXPECT_EQ(gpu->uuid, kB.uuid);
  }
  EXPECT_EQ(FindGpu("A100", kHere)->uuid, kC.uuid);
  EXPECT_EQ(FindGpu("H200", kHere).error().code, Code::kInvalidArgument);  // ambiguous
  for (const char* unknown : {"3", "-1", "", "GPU-", "GPU-b", "H2", "1x", "01 "}) {
    EXPECT_EQ(FindGpu(unknown, kHere).error().code, Code::kNotFound) << unknown;
  }
}

TEST(GpuMapTest, UnnamedGpusStay) {
  auto map = ParseGpuMap("2=2", kHere, kHere);
  ASSERT_TRUE(map) << map.error().ToString();
  EXPECT_EQ(map->size(), 3u);
  for (const auto& [from, to] : *map) EXPECT_EQ(from, to);
  EXPECT_TRUE(ParseGpuMap("", kHere, kHere)->empty());
}

TEST(GpuMapTest, SwapsTwo) {
  auto map = ParseGpuMap("0=1,GPU-bbbb=GPU-aaaa", {kA, kB}, kHere);
  ASSERT_TRUE(map) << map.error().ToString();
  EXPECT_EQ(*map, (GpuMap{{kA.uuid, kB.uuid}, {kB.uuid, kA.uuid}}));
}

TEST(GpuMapTest, ADisplacedGpuTakesTheFreePlace) {
  const Gpu d = MakeGpu(3, "dddd");
  const std::vector<Gpu> four = {kA, kB, kC, d};
  EXPECT_EQ(*ParseGpuMap("0=1", four, four),
            (GpuMap{{kA.uuid, kB.uuid}, {kB.uuid, kA.uuid}, {kC.uuid, kC.uuid}, {d.uuid, d.uuid}}));
  EXPECT_EQ(*ParseGpuMap("0=1,1=3", four, four),
            (GpuMap{{kA.uuid, kB.uuid}, {kB.uuid, d.uuid}, {kC.uuid, kC.uuid}, {d.uuid, kA.uuid}}));
}

TEST(GpuMapTest, OldGpusMayBeOfAnotherMachine) {
  const Gpu elsewhere = MakeGpu(0, "dddd");
  EXPECT_EQ(*ParseGpuMap("0=1", {elsewhere}, kHere), (GpuMap{{elsewhere.uuid, kB.uuid}}));
  auto missing = ParseGpuMap("0=1", {elsewhere, MakeGpu(1, "eeee")}, kHere);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kFailedPrecondition);
}

TEST(GpuMapTest, ReplacesMissingGpusByThoseOfTheirModelInOrder) {
  const Gpu d = MakeGpu(0, "dddd"), e = MakeGpu(3, "eeee");
  EXPECT_EQ(*ReplaceMissingGpus({kA, kB, kC}, {d, kC, e}),
            (GpuMap{{kA.uuid, d.uuid}, {kB.uuid, e.uuid}, {kC.uuid, kC.uuid}}));
  EXPECT_EQ(*ReplaceMissingGpus({kA, kB}, {kB, d}),
            (GpuMap{{kA.uuid, d.uuid}, {kB.uuid, kB.uuid}}));
  auto several = ReplaceMissingGpus({kA}, {kB, d});
  ASSERT_FALSE(several);
  EXPECT_NE(several.error().message.find("GPU-bbbb"), std::string::npos);
  EXPECT_NE(several.error().message.find("GPU-dddd"), std::string::npos);
  EXPECT_EQ(ReplaceMissingGpus({kA, kB}, {d}).error().code, Code::kUnimplemented);
  EXPECT_EQ(ReplaceMissingGpus({kA}, {kC}).error().code, Code::kUnimplemented);
}

TEST(GpuMapTest, Refusals) {
  struct Case {
    const char* text;
    Code code;
  };
  for (const Case& c :
       {Case{"0", Code::kInvalidArgument}, Case{"=1", Code::kInvalidArgument},
        Case{"0=", Code::kInvalidArgument}, Case{"0=1,", Code::kInvalidArgument},
        Case{",", Code::kInvalidArgument}, Case{"0=9", Code::kNotFound},
        Case{"9=0", Code::kNotFound}, Case{"0=1,0=1", Code::kInvalidArgument},
        Case{"0=1,1=1", Code::kInvalidArgument}, Case{"0=2,2=0", Code::kFailedPrecondition}}) {
    auto map = ParseGpuMap(c.text, kHere, kHere);
    ASSERT_FALSE(map) << c.text;
    EXPECT_EQ(map.error().code, c.code) << c.text << ": " << map.error().ToString();
  }
}

}  // namespace
}  // namespace stasis::device
