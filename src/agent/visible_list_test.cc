#include "agent/visible_list.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace stasis::agent {
namespace {

constexpr std::string_view kUuids[] = {"GPU-a3a35d22-6762-3299-196b-4b9f062fa5ec",
                                       "GPU-856700f7-d50d-7cd7-867e-1ffc2c37c3da"};

std::vector<int> Visible(std::string_view list) {
  const abi::VisibleDevices visible = abi::ReadVisibleDevices(list, kUuids, 2);
  return {visible.index, visible.index + visible.count};
}
bool Repeats(std::string_view list) { return abi::ReadVisibleDevices(list, kUuids, 2).repeated; }

using Indices = std::vector<int>;

// Each row was seen with driver 580 and two GPUs.
TEST(VisibleDevices, AreReadAsTheDriverReadsThem) {
  const struct {
    const char* list;
    Indices gpus;
  } rows[] = {
      {"1,0", {1, 0}},
      {"1", {1}},
      {"1,9,0", {1}},
      {"-1,0", {}},
      {"", {}},
      {" 1 , 0", {1, 0}},
      {"+1", {1}},
      {"0x1", {0}},
      {"1gpu", {1}},
      {"00001", {1}},
      {",1", {}},
      {"1,,0", {1}},
      {"1 0", {1}},
      {"GPU-8567", {1}},
      {"GPU-856700f7", {1}},
      {"GPU-", {}},
      {"GPU-856700f7-d50d-7cd7-867e-1ffc2c37c3da,0", {1}},
      {"0,GPU-856700f7-d50d-7cd7-867e-1ffc2c37c3da", {0}},
      {"GPU-856700F7-D50D-7CD7-867E-1FFC2C37C3DA", {1}},
      {"856700f7-d50d-7cd7-867e-1ffc2c37c3da", {}},
      {"1,0,2,3,4,5,6,7", {1, 0}},
      {"GPU-8567,GPU-a3a3,GPU-9", {1, 0}},
      {"MIG-GPU-856700f7-d50d-7cd7-867e-1ffc2c37c3da", {}},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(Visible(row.list), row.gpus) << row.list;
    EXPECT_FALSE(Repeats(row.list)) << row.list;
  }
  for (const char* list : {"0,0", "0,1,1", "GPU-8567,GPU-a3a3,GPU-8567"}) {
    EXPECT_TRUE(Repeats(list)) << list;
    EXPECT_EQ(Visible(list), Indices()) << list;
  }
}

TEST(VisibleDevices, AnIndexMayHaveAnyNumberOfDigits) {
  EXPECT_EQ(Visible("99999999999999999999999999"), Indices());
  EXPECT_EQ(Visible("00000000000000000000000001"), Indices{1});
}

GpuNames Names() {
  GpuNames names;
  for (const std::string_view uuid : kUuids) names.uuids[names.count++] = uuid;
  return names;
}

TEST(VisibleList, HasTheHiddenGpusBehindTheOthers) {
  char all[kListBytes];
  EXPECT_EQ(ListAllGpus("1", {}, all), 1);
  const std::string one = all;
  EXPECT_TRUE(one.starts_with("1,0,2,3,4,")) << one;
  EXPECT_TRUE(one.ends_with(",62,63")) << one;
  EXPECT_EQ(ListAllGpus("2, 0", {}, all), 2);
  EXPECT_TRUE(std::string(all).starts_with("2,0,1,3,")) << all;
  EXPECT_EQ(ListAllGpus("GPU-8567", Names(), all), 1);
  EXPECT_EQ(std::string(all), std::string(kUuids[1]) + "," + std::string(kUuids[0]));
}

TEST(VisibleList, LeavesOtherListsToTheDriver) {
  char all[kListBytes];
  for (const char* list : {"", "-1", "0,0", "MIG-1", "nonsense", "GPU-8567,GPU-8567", "GPU-9"}) {
    EXPECT_EQ(ListAllGpus(list, Names(), all), 0) << list;
  }
  EXPECT_EQ(ListAllGpus("GPU-8567", {}, all), 0) << "the UUIDs are unknown";
}

TEST(VisibleList, ReadsTheUuidsOfTheKernelModule) {
  char folder[] = "/tmp/stasis-visible-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string gpus = folder;
  for (const char* bus : {"0000:00:06.0", "0000:00:07.0", "0000:00:08.0"}) {
    std::filesystem::create_directory(gpus + "/" + bus);
  }
  std::ofstream(gpus + "/0000:00:06.0/information")
      << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t " << kUuids[0]
      << "\nVideo BIOS: \t 96.00.a5.00.1a\n";
  std::ofstream(gpus + "/0000:00:07.0/information") << "GPU UUID: \t GPU-856700f7";  // too short
  GpuNames names;
  ReadGpuNames(folder, &names);
  ASSERT_EQ(names.count, 1);
  EXPECT_EQ(names.uuids[0], kUuids[0]);
  std::filesystem::remove_all(gpus);
  ReadGpuNames(folder, &names);
  EXPECT_EQ(names.count, 0);
}

}  // namespace
}  // namespace stasis::agent
