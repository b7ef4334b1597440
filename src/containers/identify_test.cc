#include "containers/identify.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"

namespace stasis::containers {
namespace {

const std::string kId(64, 'a');

TEST(IdentifyTest, ControlGroupsNameTheContainer) {
  struct Row {
    std::string group;
    std::string target;  // empty: no TARGET
  };
  const Row rows[] = {
      {"0::/machine.slice/libpod-" + kId + ".scope", "podman:aaaaaaaaaaaa"},
      {"4:memory:/libpod_parent/libpod-" + kId, "podman:aaaaaaaaaaaa"},
      {"0::/user.slice/x/libpod-" + kId + ".scope/container", "podman:aaaaaaaaaaaa"},
      {"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + kId + ".scope",
       "containerd:k8s.io/" + kId},
      {"0::/kubepods/besteffort/pod12-34/" + kId, "containerd:k8s.io/" + kId},
      {"0::/kubepods.slice/crio-" + kId + ".scope", ""},
      {"0::/docker/" + kId, ""},
  };
  for (const Row& row : rows) {
    auto identity = IdentifyByControlGroup("1:cpu:/\n" + row.group + "\n");
    ASSERT_TRUE(identity) << row.group;
    EXPECT_EQ(identity->reference ? identity->reference->ToString() : "", row.target) << row.group;
  }
}

TEST(IdentifyTest, OtherGroupsNameNone) {
  for (const char* group : {"0::/user.slice/session-1.scope", "0::/", "0::/libpod-short", "",
                            "4:memory:/libpod-conmon-x", "nonsense"}) {
    EXPECT_FALSE(IdentifyByControlGroup(group)) << group;
  }
}

class StateTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/identify-XXXXXX";
    root_ = ::mkdtemp(folder);
    Write("/proc/40/status", "Name:\tsleep\nPPid:\t30\nNSpid:\t40\t1\n");
    Write("/proc/41/status", "Name:\tchild\nPPid:\t40\nNSpid:\t41\t7\n");
    Write("/proc/30/status", "Name:\tshim\nPPid:\t1\nNSpid:\t30\n");
    for (const char* pid : {"30", "40", "41"}) {
      Write(std::string("/proc/") + pid + "/cgroup", "0::/x\n");
    }
  }
  void TearDown() override { (void)RemoveTree(root_); }
  void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(MakeDirs(root_ + path.substr(0, path.rfind('/'))));
    ASSERT_TRUE(ReplaceFile(root_ + path, text));
  }
  std::string Target(pid_t pid) {
    auto identity = IdentifyContainer({pid}, root_);
    return identity && identity->reference ? identity->reference->ToString() : "";
  }

  std::string root_;
};

TEST_F(StateTest, RuncsStateFolderNamesTheContainer) {
  Write("/run/runc/one/state.json", R"({"id": "one", "init_process_pid": 40})");
  EXPECT_EQ(Target(40), "runc:one");
  EXPECT_EQ(Target(41), "runc:one") << "a child of the container's init";
  EXPECT_EQ(Target(30), "") << "it is outside";
}

TEST_F(StateTest, ContainerdKeepsOneForEachNamespace) {
  Write("/run/containerd/runc/k8s.io/t1/state.json", R"({"init_process_pid": 40})");
  EXPECT_EQ(Target(41), "containerd:k8s.io/t1");
}

TEST_F(StateTest, PodmansContainerInRuncsFolderIsPodmans) {
  Write("/run/runc/" + kId + "/state.json", R"({"init_process_pid": 40})");
  EXPECT_EQ(Target(40), "podman:aaaaaaaaaaaa");
}

TEST_F(StateTest, DamagedStateIsSkipped) {
  Write("/run/runc/bad/state.json", "{");
  Write("/run/runc/odd/state.json", R"({"init_process_pid": "40"})");
  EXPECT_EQ(Target(40), "");
}

TEST(IdentifyTest, TheAdviceIsACommand) {
  const Identity podman{"x", Reference{Runtime::kPodman, "web", ""}, {}};
  EXPECT_NE(CommandInstead(podman, "dump").find("`stasis dump podman:web`"), std::string::npos);
  EXPECT_NE(CommandInstead({"Docker container x", {}, {}}, "dump").find("docs/containers.md"),
            std::string::npos);
}

}  // namespace
}  // namespace stasis::containers
