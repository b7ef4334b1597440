#include "device/driver_environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "device/cuda/testing/target.h"

namespace stasis::device {
namespace {

using cuda::testing::ScopedEnv;

bool Has(const std::vector<std::string>& environment, const std::string& entry) {
  return std::find(environment.begin(), environment.end(), entry) != environment.end();
}

TEST(DriverEnvironmentTest, KeepsVariablesOfTheDriverAndDropsInjectedCode) {
  ScopedEnv selects("SOFTGPU_MEMORY", "1G"), path("LD_LIBRARY_PATH", "/lib/x");
  ScopedEnv preload("LD_PRELOAD", ""), visible("CUDA_VISIBLE_DEVICES", "1");
  const auto environment = DriverEnvironment();
  EXPECT_TRUE(Has(environment, "SOFTGPU_MEMORY=1G"));
  EXPECT_TRUE(Has(environment, "LD_LIBRARY_PATH=/lib/x"));
  EXPECT_TRUE(Has(environment, "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_FALSE(Has(environment, "LD_PRELOAD="));
  EXPECT_FALSE(Has(environment, "CUDA_VISIBLE_DEVICES=1"));
}

TEST(DriverEnvironmentTest, TheLibraryPathDoesNotDependOnTheWorkingDirectory) {
  const std::string here = std::filesystem::current_path();
  const std::string plain = DriverIdentity("");
  for (const auto& [set, expected] : {std::pair<std::string, std::string>{"", ""},
                                      {"/a:/b/c", "/a:/b/c"},
                                      {":/a::/b:", "/a:/b"},
                                      {"x/y:/a", here + "/x/y:/a"},
                                      {".", here + "/."}}) {
    ScopedEnv path("LD_LIBRARY_PATH", set.c_str());
    EXPECT_TRUE(Has(DriverEnvironment(), "LD_LIBRARY_PATH=" + expected)) << set;
    if (!expected.empty()) {
      EXPECT_NE(DriverIdentity(""), plain) << set;
    }
  }
  ScopedEnv path("LD_LIBRARY_PATH", "/a:");
  const std::string trailing = DriverIdentity("");
  ScopedEnv same("LD_LIBRARY_PATH", "/a");
  EXPECT_EQ(DriverIdentity(""), trailing);
}

TEST(DriverEnvironmentTest, AnotherDriverHasAnotherIdentity) {
  const std::string plain = DriverIdentity("");
  EXPECT_EQ(DriverIdentity(""), plain);
  EXPECT_NE(DriverIdentity("/opt/libcuda.so.1"), plain);
  {
    ScopedEnv path("LD_LIBRARY_PATH", "/lib/x");
    EXPECT_NE(DriverIdentity(""), plain);
  }
  {
    ScopedEnv selects("SOFTGPU_DEVICES", "7");
    EXPECT_NE(DriverIdentity(""), plain);
  }
  {
    ScopedEnv unrelated("STASIS_UNRELATED", "7");
    EXPECT_EQ(DriverIdentity(""), plain);
  }
}

}  // namespace
}  // namespace stasis::device
