#include "device/granted_gpus.h"

#include <gtest/gtest.h>

namespace stasis::device {
namespace {

Gpu GpuOf(int index, const std::string& start, const std::string& name = "H200") {
  return {GpuUuid{"GPU-" + start + "0000-0000-0000-0000-000000000000"}, index, name, 1, 1};
}
const Gpu kFirst = GpuOf(0, "aaaa"), kSecond = GpuOf(1, "bbbb"), kOther = GpuOf(2, "cccc", "A100"),
          kFourth = GpuOf(3, "dddd");
const std::vector<Gpu> kMachine = {kFirst, kSecond, kOther, kFourth};

GpuMap GrantedMap(const std::vector<Gpu>& wanted, const std::vector<Gpu>& granted,
                  const std::vector<Gpu>& old_gpus = kMachine) {
  std::vector<GpuUuid> uuids;
  for (const Gpu& gpu : wanted) uuids.push_back(gpu.uuid);
  auto map = MapToGranted(old_gpus, kMachine, uuids, granted);
  EXPECT_TRUE(map) << map.error().ToString();
  return map ? *map : GpuMap{};
}

GpuUuid PlaceOf(const GpuMap& map, const Gpu& gpu) {
  for (const auto& [from, to] : map) {
    if (from == gpu.uuid) return to;
  }
  return {};
}

TEST(ReadGrantedTest, ReadsIndicesUuidsAndNames) {
  auto granted = ReadGranted(" 3 ,GPU-aaaa,A100", kMachine);
  ASSERT_TRUE(granted) << granted.error().ToString();
  ASSERT_EQ(granted->size(), 3u);
  EXPECT_EQ((*granted)[0].uuid, kFourth.uuid);
  EXPECT_EQ((*granted)[1].uuid, kFirst.uuid);
  EXPECT_EQ((*granted)[2].uuid, kOther.uuid);
  EXPECT_EQ(ReadGranted("1,-1,2", kMachine)->size(), 1u) << "-1 ends the list";
}

TEST(ReadGrantedTest, Refusals) {
  for (const char* list : {"", "-1", "1,1", "H200"}) {
    EXPECT_EQ(ReadGranted(list, kMachine).error().code, Code::kInvalidArgument) << list;
  }
  for (const char* list : {"7", "1,9", "GPU-9999", "MIG-1"}) {
    EXPECT_EQ(ReadGranted(list, kMachine).error().code, Code::kNotFound) << list;
  }
}

TEST(MapToGrantedTest, NothingMovesIfAllIsGranted) {
  EXPECT_TRUE(GrantedMap({kFirst}, {kFirst}).empty());
  EXPECT_TRUE(GrantedMap({kFirst, kSecond}, {kFourth, kSecond, kFirst}).empty());
  EXPECT_TRUE(GrantedMap({}, {kFirst}).empty());
}

TEST(MapToGrantedTest, MovesToTheGrantedGpuOfTheModel) {
  const GpuMap map = GrantedMap({kFirst}, {kOther, kSecond});
  ASSERT_EQ(map.size(), 4u) << "every GPU that the program saw";
  EXPECT_EQ(PlaceOf(map, kFirst), kSecond.uuid);
  EXPECT_EQ(PlaceOf(map, kSecond), kFirst.uuid);
  EXPECT_EQ(PlaceOf(map, kOther), kOther.uuid);
  EXPECT_EQ(PlaceOf(map, kFourth), kFourth.uuid);
}

TEST(MapToGrantedTest, AGpuThatIsGrantedStays) {
  const GpuMap map = GrantedMap({kFirst, kSecond}, {kSecond, kFourth});
  EXPECT_EQ(PlaceOf(map, kFirst), kFourth.uuid);
  EXPECT_EQ(PlaceOf(map, kSecond), kSecond.uuid);
  EXPECT_EQ(PlaceOf(map, kFourth), kFirst.uuid);
}

TEST(MapToGrantedTest, KeepsTheOrderOfTheProgram) {
  const Gpu x = GpuOf(0, "1111"), y = GpuOf(1, "2222");
  const GpuMap map = GrantedMap({y, x}, {kFourth, kFirst}, {x, y});
  EXPECT_EQ(PlaceOf(map, y), kFourth.uuid);
  EXPECT_EQ(PlaceOf(map, x), kFirst.uuid);
  EXPECT_EQ(map.size(), 2u);
}

TEST(MapToGrantedTest, UnusedGpusOfAnotherMachineFindAPlace) {
  const Gpu x = GpuOf(0, "1111"), y = GpuOf(1, "2222");
  const GpuMap map = GrantedMap({x}, {kSecond}, {x, y});
  EXPECT_EQ(PlaceOf(map, x), kSecond.uuid);
  EXPECT_EQ(PlaceOf(map, y), kFirst.uuid);
}

TEST(MapToGrantedTest, Refusals) {
  for (const auto& [wanted, granted] :
       std::vector<std::pair<std::vector<GpuUuid>, std::vector<Gpu>>>{
           {{kFirst.uuid}, {kOther}},
           {{kFirst.uuid, kSecond.uuid}, {kFourth}},
           {{{"GPU-0"}}, {kFirst}}}) {
    EXPECT_EQ(MapToGranted(kMachine, kMachine, wanted, granted).error().code,
              Code::kFailedPrecondition);
  }
  std::vector<Gpu> many = {GpuOf(0, "1111"), GpuOf(1, "2222"), GpuOf(2, "3333"), GpuOf(3, "4444")};
  EXPECT_EQ(MapToGranted(many, kMachine, {many[0].uuid}, {kFirst}).error().code,
            Code::kFailedPrecondition)
      << "there is no place for the fourth";
}

TEST(CheckGrantedTest, RefusesAMapToAnotherGpu) {
  EXPECT_TRUE(CheckGranted({{kFirst.uuid, kSecond.uuid}}, {kFirst.uuid}, {kSecond}));
  EXPECT_TRUE(CheckGranted({}, {kFirst.uuid}, {kFirst}));
  EXPECT_EQ(CheckGranted({{kFirst.uuid, kSecond.uuid}}, {kFirst.uuid}, {kFirst}).error().code,
            Code::kFailedPrecondition);
  EXPECT_FALSE(CheckGranted({}, {kFirst.uuid}, {kSecond}));
}

}  // namespace
}  // namespace stasis::device
