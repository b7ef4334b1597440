#include "conformance/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"

namespace stasis::conformance {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/machine-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(root_)); }
  void Write(const std::string& path, const std::string& text) {
    const std::string whole = root_ + path;
    ASSERT_TRUE(MakeDirs(whole.substr(0, whole.rfind('/'))));
    ASSERT_TRUE(ReplaceFile(whole, text));
  }
  std::string root_;
};

TEST_F(MachineTest, DescribesDriverTopologyAndFirmware) {
  Write("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Ubuntu 24.04\"\n");
  Write("/sys/module/amdgpu/version", "6.10.5\n");
  Write("/opt/rocm/.info/version", "6.4.0-47\n");
  Write("/dev/dri/renderD128", "");
  Write("/dev/dri/card0", "");
  Write("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
  Write("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4711\n");
  Write("/sys/class/kfd/kfd/topology/nodes/1/name", "aldebaran\n");
  Write("/sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 440\n");
  Write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n");
  Write("/sys/bus/pci/devices/0000:01:00.0/drm/x", "");
  Write("/sys/bus/pci/devices/0000:01:00.0/fw_version/mec_fw_version", "0x30\n");
  Write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
  const Facts facts = DescribeMachine(root_);
  EXPECT_THAT(facts, Contains(Pair("operating system", "Ubuntu 24.04")));
  EXPECT_THAT(facts, Contains(Pair("amdgpu kernel driver", "6.10.5")));
  EXPECT_THAT(facts, Contains(Pair("ROCm", "6.4.0-47")));
  EXPECT_THAT(facts, Contains(Pair("render nodes", "/dev/dri/renderD128")));
  EXPECT_THAT(facts, Contains(Pair("topology node 1", HasSubstr("simd_count 440"))));
  EXPECT_THAT(facts, Contains(Pair("PCI device 0000:01:00.0", HasSubstr("mec_fw_version 0x30"))));
  EXPECT_THAT(facts, ::testing::Not(Contains(Pair("topology node 0", ::testing::_))));
}

TEST_F(MachineTest, AMachineWithoutSuchAGpuHasNoFactsOfIt) {
  for (const auto& [name, text] : DescribeMachine(root_)) {
    EXPECT_TRUE(name == "architecture" || name == "processors") << name;
  }
}

}  // namespace
}  // namespace stasis::conformance
