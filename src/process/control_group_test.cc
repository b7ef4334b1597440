#include "process/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace stasis::process {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMib = 1u << 20;
constexpr HostPid kPid{4711};

// Builds a root directory with the files of /proc and /sys/fs/cgroup that are read.
class ControlGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/control-group-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Groups(const std::string& text) { Write("/proc/4711/cgroup", text); }
  void Mounts(const std::string& text) { Write("/proc/self/mountinfo", text); }
  void Unified() {
    Mounts(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void Limit2(const std::string& group, const std::string& limit, uint64_t used) {
    Write("/sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    Write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(used) + "\n");
  }
  void Limit1(const std::string& group, uint64_t limit, uint64_t used) {
    Write("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    Write("/sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
  }
  MemoryLeft Left() { return MemoryLeftInControlGroups(kPid, root_); }

  std::string root_;
};

TEST_F(ControlGroupTest, WithoutALimitThereIsNone) {
  Unified();
  Groups("0::/a/b\n");
  Limit2("/a/b", "max", 5 * kMib);
  EXPECT_EQ(Left().bytes, MemoryLeft::kNoLimit);
  EXPECT_EQ(Left().beyond_reserve(), MemoryLeft::kNoLimit);
}

TEST_F(ControlGroupTest, AnEndedProcessHasNoLimit) {
  Unified();
  EXPECT_EQ(Left().bytes, MemoryLeft::kNoLimit);
}

TEST_F(ControlGroupTest, TheTightestAncestorCountsInVersion2) {
  Unified();
  Groups("0::/a/b/c\n");
  Limit2("/a", std::to_string(1000 * kMib), 900 * kMib);
  Limit2("/a/b", std::to_string(500 * kMib), 300 * kMib);
  Limit2("/a/b/c", "max", 300 * kMib);
  EXPECT_EQ(Left().bytes, 100 * kMib);
  EXPECT_EQ(Left().limit_file, root_ + "/sys/fs/cgroup/a/memory.max");
  EXPECT_EQ(Left().beyond_reserve(), 36 * kMib);
}

TEST_F(ControlGroupTest, HighIsALimitToo) {
  Unified();
  Groups("0::/a\n");
  Limit2("/a", std::to_string(1000 * kMib), 100 * kMib);
  Write("/sys/fs/cgroup/a/memory.high", std::to_string(300 * kMib) + "\n");
  EXPECT_EQ(Left().bytes, 200 * kMib);
  EXPECT_EQ(Left().limit_file, root_ + "/sys/fs/cgroup/a/memory.high");
}

TEST_F(ControlGroupTest, ReclaimableFilePagesAreFree) {
  Unified();
  Groups("0::/a\n");
  Limit2("/a", std::to_string(100 * kMib), 90 * kMib);
  Write("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file " + std::to_string(20 * kMib) +
                                            "\nactive_file " + std::to_string(30 * kMib) +
                                            "\nshmem 7\n");
  EXPECT_EQ(Left().bytes, 60 * kMib);
}

TEST_F(ControlGroupTest, UsageAboveTheLimitLeavesNothing) {
  Unified();
  Groups("0::/a\n");
  Limit2("/a", std::to_string(100 * kMib), 120 * kMib);
  EXPECT_EQ(Left().bytes, 0u);
  EXPECT_EQ(Left().beyond_reserve(), 0u);
}

// As on hybrid machines: memory is in version 1, and the unified hierarchy has no limits.
TEST_F(ControlGroupTest, TheTightestAncestorCountsInVersion1) {
  Mounts(
      "30 22 0:26 / /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n"
      "31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
      "32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Groups("5:cpu,cpuacct:/slurm\n4:memory:/slurm/job_7/step_0\n0::/slurm\n");
  Limit1("", 0x7ffffffffffff000, 9000 * kMib);
  Limit1("/slurm", 0x7ffffffffffff000, 9000 * kMib);
  Limit1("/slurm/job_7", 400 * kMib, 350 * kMib);
  Limit1("/slurm/job_7/step_0", 0x7ffffffffffff000, 300 * kMib);
  Write("/sys/fs/cgroup/memory/slurm/job_7/memory.stat",
        "inactive_file 0\ntotal_inactive_file " + std::to_string(10 * kMib) + "\n");
  EXPECT_EQ(Left().bytes, 60 * kMib);
  EXPECT_EQ(Left().limit_file, root_ + "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes");

  auto groups = ControlGroups(kPid, root_);
  ASSERT_TRUE(groups) << groups.error().ToString();
  const std::string all = root_ + "/sys/fs/cgroup";
  EXPECT_EQ(*groups, (std::vector<ControlGroup>{
                         {all + "/cpu", all + "/cpu/slurm"},
                         {all + "/memory", all + "/memory/slurm/job_7/step_0"},
                         {all + "/unified", all + "/unified/slurm"},
                     }));
}

// In a container without a cgroup namespace, the mount shows the container's own group.
TEST_F(ControlGroupTest, OnlyGroupsBelowTheMountAreRead) {
  Mounts("30 22 0:26 /docker/c0 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  Groups("4:memory:/docker/c0/inner\n");
  Limit1("", 200 * kMib, 100 * kMib);
  Limit1("/inner", 300 * kMib, 90 * kMib);
  EXPECT_EQ(Left().bytes, 100 * kMib);
}

TEST_F(ControlGroupTest, AGroupOutsideOfTheNamespaceHasNoFolder) {
  Unified();
  Groups("0::/../other\n");
  auto groups = ControlGroups(kPid, root_);
  ASSERT_TRUE(groups);
  EXPECT_TRUE(groups->empty());
}

TEST_F(ControlGroupTest, OnlyDifferentGroupsAreJoined) {
  Mounts(
      "30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "31 22 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
      "32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("/proc/" + ToString({::getpid()}) + "/cgroup", "5:pids:/daemon\n4:memory:/\n0::/daemon\n");
  Groups("5:pids:/daemon\n4:memory:/slurm/job_7\n0::/session\n");
  auto folders = ControlGroupsToJoin(kPid, root_);
  ASSERT_TRUE(folders) << folders.error().ToString();
  EXPECT_EQ(*folders, (std::vector<std::string>{root_ + "/sys/fs/cgroup/memory/slurm/job_7",
                                                root_ + "/sys/fs/cgroup/unified/session"}));
}

TEST_F(ControlGroupTest, AnUnmountedGroupCannotBeJoined) {
  Unified();
  Write("/proc/" + ToString({::getpid()}) + "/cgroup", "4:memory:/\n0::/a\n");
  Groups("4:memory:/slurm/job_7\n0::/a\n");
  auto folders = ControlGroupsToJoin(kPid, root_);
  ASSERT_FALSE(folders);
  EXPECT_EQ(folders.error().code, Code::kFailedPrecondition);
  EXPECT_NE(folders.error().message.find("/slurm/job_7"), std::string::npos);
}

TEST_F(ControlGroupTest, APausedContainerIsFrozen) {
  Mounts(
      "30 22 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
      "32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Groups("5:freezer:/c1\n0::/c1\n");
  EXPECT_FALSE(IsFrozen(kPid, root_));
  const std::string state = "/sys/fs/cgroup/freezer/c1/freezer.state";
  const std::string events = "/sys/fs/cgroup/unified/c1/cgroup.events";
  struct Row {
    const char* state;
    const char* events;
    bool frozen;
  };
  for (const Row& row : {Row{"THAWED\n", "populated 1\nfrozen 0\n", false},
                         Row{"FREEZING\n", "populated 1\nfrozen 0\n", true},
                         Row{"FROZEN\n", "populated 1\nfrozen 0\n", true},
                         Row{"THAWED\n", "populated 1\nfrozen 1\n", true}}) {
    Write(state, row.state);
    Write(events, row.events);
    EXPECT_EQ(IsFrozen(kPid, root_), row.frozen) << row.state << row.events;
  }
}

TEST(OwnControlGroupTest, TheDirectoriesExist) {
  auto groups = ControlGroups({::getpid()});
  ASSERT_TRUE(groups) << groups.error().ToString();
  for (const ControlGroup& group : *groups) {
    EXPECT_TRUE(fs::exists(group.folder + "/cgroup.procs")) << group.folder;
  }
}

}  // namespace
}  // namespace stasis::process
