#include "device/granted_gpus.h"

#include <gtest/gtest.h>

namespace stasis::device {
namespace {

Gpu MakeGpu(int index, const std::string& start, const std::string& name = "H200") {
  return {GpuUuid{"GPU-" + start + "0000-0000-0000-0000-000000000000"}, index, name, 1, 1};
}
const Gpu kA = MakeGpu(0, "aaaa"), kB = MakeGpu(1, "bbbb"), kC = MakeGpu(2, "cccc", "A100"),
          kD = MakeGpu(3, "dddd");
const std::vector<Gpu> kHere = {kA, kB, kC, kD};

GpuMap Map(const std::vector<Gpu>& wanted, const std::vector<Gpu>& granted,
           const std::vector<Gpu>& old_gpus = kHere) {
  std::vector<GpuUuid> uuids;
  for (const Gpu& gpu : wanted) uuids.push_back(gpu.uuid);
  auto map = MapToGranted(old_gpus, kHere, uuids, granted);
  EXPECT_TRUE(map) << map.error().ToString();
  return map ? *map : GpuMap{};
}

GpuUuid Place(const GpuMap& map, const Gpu& gpu) {
  for (const auto& [from, to] : map) {
    if (from == gpu.uuid) return to;
  }
  return {};
}

TEST(ReadGrantedTest, ReadsIndicesUuidsAndNames) {
  auto granted = ReadGranted(" 3 ,GPU-aaaa,A100", kHere);
  ASSERT_TRUE(granted) << granted.error().ToString();
  ASSERT_EQ(granted->size(), 3u);
  EXPECT_EQ((*granted)[0].uuid, kD.uuid);
  EXPECT_EQ((*granted)[1].uuid, kA.uuid);
  EXPECT_EQ((*granted)[2].uuid, kC.uuid);
  EXPECT_EQ(ReadGranted("1,-1,2", kHere)->size(), 1u) << "-1 ends the list";
}

TEST(ReadGrantedTest, Refusals) {
  for (const char* list : {"", "-1", "1,1", "H200"}) {
    EXPECT_EQ(ReadGranted(list, kHere).error().code, Code::kInvalidArgument) << list;
  }
  for (const char* list : {"7", "1,9", "GPU-9999", "MIG-1"}) {
    EXPECT_EQ(ReadGranted(list, kHere).error().code, Code::kNotFound) << list;
  }
}

TEST(MapToGrantedTest, NothingMovesIfAllIsGranted) {
  EXPECT_TRUE(Map({kA}, {kA}).empty());
  EXPECT_TRUE(Map({kA, kB}, {kD, kB, kA}).empty());
  EXPECT_TRUE(Map({}, {kA}).empty());
}

TEST(MapToGrantedTest, MovesToTheGrantedGpuOfTheModel) {
  const GpuMap map = Map({kA}, {kC, kB});
  ASSERT_EQ(map.size(), 4u) << "every GPU that the program saw";
  EXPECT_EQ(Place(map, kA), kB.uuid);
  EXPECT_EQ(Place(map, kB), kA.uuid);
  EXPECT_EQ(Place(map, kC), kC.uuid);
  EXPECT_EQ(Place(map, kD), kD.uuid);
}

TEST(MapToGrantedTest, AGpuThatIsGrantedStays) {
  const GpuMap map = Map({kA, kB}, {kB, kD});
  EXPECT_EQ(Place(map, kA), kD.uuid);
  EXPECT_EQ(Place(map, kB), kB.uuid);
  EXPECT_EQ(Place(map, kD), kA.uuid);
}

TEST(MapToGrantedTest, KeepsTheOrderOfTheProgram) {
  const Gpu x = MakeGpu(0, "1111"), y = MakeGpu(1, "2222");
  const GpuMap map = Map({y, x}, {kD, kA}, {x, y});
  EXPECT_EQ(Place(map, y), kD.uuid);
  EXPECT_EQ(Place(map, x), kA.uuid);
  EXPECT_EQ(map.size(), 2u);
}

TEST(MapToGrantedTest, UnusedGpusOfAnotherMachineFindAPlace) {
  const Gpu x = MakeGpu(0, "1111"), y = MakeGpu(1, "2222");
  const GpuMap map = Map({x}, {kB}, {x, y});
  EXPECT_EQ(Place(map, x), kB.uuid);
  EXPECT_EQ(Place(map, y), kA.uuid);
}

TEST(MapToGrantedTest, Refusals) {
  for (const auto& [wanted, granted] :
       std::vector<std::pair<std::vector<GpuUuid>, std::vector<Gpu>>>{
           {{kA.uuid}, {kC}}, {{kA.uuid, kB.uuid}, {kD}}, {{{"GPU-0"}}, {kA}}}) {
    EXPECT_EQ(MapToGranted(kHere, kHere, wanted, granted).error().code, Code::kFailedPrecondition);
  }
  std::vector<Gpu> many = {MakeGpu(0, "1111"), MakeGpu(1, "2222"), MakeGpu(2, "3333"),
                           MakeGpu(3, "4444")};
  EXPECT_EQ(MapToGranted(many, kHere, {many[0].uuid}, {kA}).error().code, Code::kFailedPrecondition)
      << "there is no place for the fourth";
}

TEST(CheckGrantedTest, RefusesAMapToAnotherGpu) {
  EXPECT_TRUE(CheckGranted({{kA.uuid, kB.uuid}}, {kA.uuid}, {kB}));
  EXPECT_TRUE(CheckGranted({}, {kA.uuid}, {kA}));
  EXPECT_EQ(CheckGranted({{kA.uuid, kB.uuid}}, {kA.uuid}, {kA}).error().code,
            Code::kFailedPrecondition);
  EXPECT_FALSE(CheckGranted({}, {kA.uuid}, {kB}));
}

}  // namespace
}  // namespace stasis::device
