#include "device/hip/criu_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"

namespace stasis::device::hip {
namespace {

using ::testing::HasSubstr;

constexpr char kOne[] = "device_id=29711 fw_version=78 gfx_target_version=90402 simd_count=1216\n";
constexpr char kNewer[] =
    "device_id=29711 fw_version=80 gfx_target_version=90402 simd_count=1216\n";
constexpr char kOther[] = "device_id=29704 fw_version=78 gfx_target_version=90010 simd_count=416\n";

TEST(CriuPluginTest, AMachineWithoutTheKernelDriverIsNamed) {
  const Status checked = CheckKernelDriver("amd", "/nonexistent/kfd");
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kUnimplemented);
  EXPECT_EQ(checked.error().message, "there is no /nonexistent/kfd on this machine");
  EXPECT_THAT(checked.error().hint, HasSubstr("modprobe amdgpu"));
}

TEST(CriuPluginTest, AnotherFileIsNotTheKernelDriver) {
  EXPECT_FALSE(CheckKernelDriver("amd", "/dev/null"));
}

TEST(CriuPluginTest, SoftwareGpusNeedNoKernelDriver) {
  EXPECT_TRUE(CheckKernelDriver("softgpu-hip", "/nonexistent/kfd"));
  EXPECT_EQ(*ReadTopology("softgpu-hip", "/nonexistent"), "");
}

TEST(CriuPluginTest, TheTopologyOfTheGpusIsRead) {
  char folder[] = "/tmp/topology-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string root = folder;
  auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_TRUE(MakeDirs(root + "/" + name.substr(0, name.find('/'))));
    ASSERT_TRUE(ReplaceFile(root + "/" + name, text));
  };
  write("0/gpu_id", "0\n");
  write("1/gpu_id", "53247\n");
  write("1/properties", "cpu_cores_count 0\nsimd_count 1216\nfw_version 78\nunique_id 4711\n");
  // A hidden GPU.
  ASSERT_TRUE(MakeDirs(root + "/2"));
  auto text = ReadTopology("amd", root);
  ASSERT_TRUE(text) << text.error().ToString();
  EXPECT_EQ(*text, "fw_version=78 simd_count=1216\n");
  ASSERT_TRUE(RemoveTree(root));
}

TEST(CriuPluginTest, TheSameGpusInAnotherOrderWillDo) {
  EXPECT_TRUE(CompareTopology("", ""));
  EXPECT_TRUE(CompareTopology(std::string(kOne) + kOther, std::string(kOther) + kOne));
}

TEST(CriuPluginTest, FirmwareMayBeNewerAndNotOlder) {
  EXPECT_TRUE(CompareTopology(kOne, kNewer));
  const Status older = CompareTopology(kNewer, kOne);
  ASSERT_FALSE(older);
  EXPECT_THAT(older.error().message,
              HasSubstr("fw_version is 78, and was 80 when the image was made"));
}

// The first GPU could replace both, and the second only the older one.
TEST(CriuPluginTest, EachGpuIsReplacedByOneThatTheOthersDoNotNeed) {
  const std::string older = kOne, newer = kNewer;
  EXPECT_TRUE(CompareTopology(older + newer, newer + older));
  EXPECT_TRUE(CompareTopology(newer + older, older + newer));
  const Status twice = CompareTopology(newer + newer, newer + older);
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message, HasSubstr("fw_version is 78, and was 80"));
}

TEST(CriuPluginTest, TheDifferenceIsThatOfTheMostSimilarGpu) {
  const Status refused = CompareTopology(std::string(kOther) + kNewer, std::string(kOther) + kOne);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("fw_version is 78, and was 80"));
}

TEST(CriuPluginTest, WithoutARecordNothingIsCompared) { EXPECT_TRUE(CompareTopology("", kOne)); }

TEST(CriuPluginTest, ManyGpusAreComparedAtOnce) {
  std::string recorded, here;
  for (int i = 0; i < 256; ++i) {
    recorded += "fw_version=" + std::to_string(i) + "\n";
    here += "fw_version=" + std::to_string(255 - i) + "\n";
  }
  EXPECT_TRUE(CompareTopology(recorded, here));
}

TEST(CriuPluginTest, AnotherModelOrNumberOfGpusIsRefused) {
  EXPECT_THAT(CompareTopology(kOne, kOther).error().message, HasSubstr("gfx_target_version is"));
  EXPECT_EQ(CompareTopology(std::string(kOne) + kOne, kOne).error().message,
            "the image was made with 2 AMD GPUs, and this machine has 1");
}

TEST(CriuPluginTest, ADamagedRecordIsNoError) {
  EXPECT_TRUE(CompareTopology("simd_count=\xff =3 x\n", kOne));
  EXPECT_FALSE(CompareTopology(std::string(100000, '\n'), kOne));
}

}  // namespace
}  // namespace stasis::device::hip
