// With the words of CRIU 4.2.1's plugin.
#include "criu/amd_plugin.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "base/file.h"

namespace stasis::criu {
namespace {

class PluginWork : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/amd-plugin-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    log_ = folder_ + "/log";
    Log("Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE\n"
        "Warn  (criu/kerndat.c:1): something\n");
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(folder_)); }
  void Log(const std::string& text) { ASSERT_TRUE(ReplaceFile(log_, text)); }
  void Image(const std::string& name) { ASSERT_TRUE(ReplaceFile(folder_ + "/" + name, "")); }
  Status Dumped(size_t processes) { return CheckPluginDump(folder_, log_, processes); }

  std::string folder_, log_;
};

TEST_F(PluginWork, EachProcessHasAFile) {
  Image("amdgpu-kfd-5.img");
  Image("amdgpu-renderD-6.img");
  EXPECT_TRUE(Dumped(1));
  const Status missing = Dumped(2);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "CRIU's plugin for AMD GPUs saved the GPU state of 1 of 2 processes");
  Image("amdgpu-kfd-7.img");
  EXPECT_TRUE(Dumped(2));
}

TEST_F(PluginWork, AnErrorThatTheDumpLosesIsFound) {
  Image("amdgpu-kfd-5.img");
  Log("(00.2) Error (amdgpu_plugin.c:1293): amdgpu_plugin: Failed to call dumper (process) ioctl: "
      "Bad address\n");
  const Status found = Dumped(1);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("could not save the GPU state: Failed to call dumper"),
            std::string::npos)
      << found.error().message;
}

// The plugin skips GPUs that a control group hides from it.
TEST_F(PluginWork, AHiddenGpuIsNoError) {
  Image("amdgpu-kfd-5.img");
  Log("(00.2) Error (amdgpu_plugin_topology.c:956): amdgpu_plugin: Failed to access "
      "/sys/class/kfd/kfd/topology/nodes/3/gpu_id: Operation not permitted\n");
  EXPECT_TRUE(Dumped(1));
}

TEST_F(PluginWork, AnErrorThatTheRestoreLosesIsFound) {
  EXPECT_TRUE(CheckPluginRestore(log_));
  Log("(00.2) Error (amdgpu_plugin.c:1855): amdgpu_plugin: restore late ioctl failed: No such "
      "device\n");
  const Status found = CheckPluginRestore(log_);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("could not restore the GPU state: restore late ioctl"),
            std::string::npos);
}

TEST_F(PluginWork, ALogThatCannotBeReadIsAnError) {
  Image("amdgpu-kfd-5.img");
  ASSERT_TRUE(RemoveFile(log_));
  EXPECT_FALSE(Dumped(1));
  EXPECT_FALSE(CheckPluginRestore(log_));
}

// Errors are found in the middle of a long log, too.
TEST_F(PluginWork, TheWholeLogIsRead) {
  const std::string much(2u << 20, '\n');
  Log(much + "Error (amdgpu_plugin.c:1855): amdgpu_plugin: restore late ioctl failed: x\n" + much);
  EXPECT_FALSE(CheckPluginRestore(log_));
}

}  // namespace
}  // namespace stasis::criu
