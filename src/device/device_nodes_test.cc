#include "device/device_nodes.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"

namespace stasis::device {
namespace {

class DeviceNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may create device files";
    char name[] = "/tmp/device-nodes-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    for (const char* sub : {"/dev/nvidia-caps", "/root/dev/nvidia-caps"}) {
      ASSERT_TRUE(MakeDirs(folder_ + sub));
    }
    if (!Make("/dev/nvidia0", 195, 0)) GTEST_SKIP() << "device files cannot be created here";
  }
  void TearDown() override {
    if (!folder_.empty()) (void)RemoveTree(folder_);
  }

  bool Make(const std::string& path, unsigned major, unsigned minor, mode_t mode = 0666) const {
    return ::mknod((folder_ + path).c_str(), S_IFCHR | mode, makedev(major, minor)) == 0;
  }
  // Returns "MAJOR:MINOR", or an empty string if there is no such file.
  std::string NumberOf(const std::string& path) const {
    struct stat st;
    if (::lstat((folder_ + path).c_str(), &st) != 0) return {};
    return std::to_string(major(st.st_rdev)) + ":" + std::to_string(minor(st.st_rdev));
  }
  Status Renew(const std::vector<int>& minors) const {
    return RenewDeviceNodes(folder_ + "/root", minors, folder_ + "/dev");
  }

  std::string folder_;
};

TEST_F(DeviceNodesTest, DevicesGetTheNumbersOfThisMachine) {
  ASSERT_TRUE(Make("/dev/nvidia-uvm", 509, 0) && Make("/dev/nvidia-caps/nvidia-cap1", 234, 1));
  ASSERT_TRUE(Make("/root/dev/nvidia-uvm", 508, 0, 0640));
  ASSERT_TRUE(Make("/root/dev/nvidia-caps/nvidia-cap1", 235, 1) && Make("/root/dev/null", 1, 3));
  auto renewed = Renew({});
  ASSERT_TRUE(renewed) << renewed.error().ToString();
  EXPECT_EQ(NumberOf("/root/dev/nvidia-uvm"), "509:0");
  EXPECT_EQ(NumberOf("/root/dev/nvidia-caps/nvidia-cap1"), "234:1");
  EXPECT_EQ(NumberOf("/root/dev/null"), "1:3");
  EXPECT_EQ(NumberOf("/root/dev/nvidia0"), "") << "the container does not get this GPU";
  struct stat st;
  ASSERT_EQ(::stat((folder_ + "/root/dev/nvidia-uvm").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
}

TEST_F(DeviceNodesTest, AReplacementGpuGetsItsDevice) {
  ASSERT_TRUE(Make("/dev/nvidia5", 195, 5) && Make("/root/dev/nvidia0", 195, 0));
  ASSERT_TRUE(Renew({5}));
  EXPECT_EQ(NumberOf("/root/dev/nvidia5"), "195:5");
  EXPECT_EQ(NumberOf("/root/dev/nvidia0"), "195:0");
}

TEST_F(DeviceNodesTest, ALinkOfTheContainerDoesNotLeadOut) {
  ASSERT_TRUE(MakeDirs(folder_ + "/outside"));
  ASSERT_TRUE(RemoveTree(folder_ + "/root/dev"));
  ASSERT_EQ(::symlink((folder_ + "/outside").c_str(), (folder_ + "/root/dev").c_str()), 0);
  ASSERT_TRUE(Renew({0}));
  EXPECT_EQ(NumberOf("/outside/nvidia0"), "");
}

TEST_F(DeviceNodesTest, TheDevicesOfTheMachineStay) {
  ASSERT_TRUE(RenewDeviceNodes(folder_, {0, 7}, folder_ + "/dev"));
  EXPECT_EQ(NumberOf("/dev/nvidia0"), "195:0");
  EXPECT_EQ(NumberOf("/dev/nvidia7"), "");
}

}  // namespace
}  // namespace stasis::device
