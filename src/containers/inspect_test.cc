#include "containers/inspect.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "containers/cdi.h"
#include "containers/criu_config.h"
#include "containers/setup.h"
#include "containers/testing/fake_runner.h"

namespace stasis::containers {
namespace {

using Level = Observation::Level;

TEST(VersionTest, TheFirstNumberWithADotCounts) {
  EXPECT_EQ(FirstVersionText("Version: 4.2.1\nGitID: 0\n"), "4.2.1");
  EXPECT_EQ(FirstVersionText("runc version 1.1.5+ds1\ncommit: 1.1.5"), "1.1.5");
  EXPECT_EQ(FirstVersionText("crun version 1.8.1.\n"), "1.8.1");
  EXPECT_EQ(FirstVersionText("containerd v1.7"), "1.7");
  EXPECT_EQ(FirstVersionText("x86 has none"), "");
  EXPECT_LT(FirstVersion("Version: 3.17.1"), kLeastCriu);
  EXPECT_GE(FirstVersion("Version: 4.0"), kLeastCriu);
  EXPECT_GE(FirstVersion("Version: 10.1"), kLeastCriu);
}

class InspectTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/inspect-XXXXXX";
    root_ = ::mkdtemp(folder);
    paths_ = {root_ + "/etc/criu/default.conf", root_ + "/etc/cdi", root_ + "/plugin",
              "/opt/stasis/libexec/criu", root_};
    library_ = root_ + "/agents/01ab/libstasis-agent.so";
    ASSERT_TRUE(MakeDirs(root_ + "/agents/01ab"));
    ASSERT_TRUE(ReplaceFile(library_, "x"));
    ASSERT_TRUE(MakeDirs(paths_.plugin_folder));
    ASSERT_TRUE(ReplaceFile(paths_.plugin_folder + "/stasis_plugin.so", "x"));
    runner_.Install("iptables-restore", "/sbin/iptables-restore");
    ASSERT_TRUE(MakeDirs(root_ + "/proc/net"));
    Listen("/run/stasisd/criu.sock");
  }
  void TearDown() override { (void)RemoveTree(root_); }

  void Listen(const std::string& path) {
    const std::string text =
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000000000000000: 00000002 00000000 00010000 0005 01 12674 " +
        path +
        "\n"
        "0000000000000000: 00000003 00000000 00000000 0005 03 12680 /connected.sock\n";
    ASSERT_TRUE(ReplaceFile(root_ + "/proc/net/unix", text));
  }

  Observation OfSetup(const std::string& id) {
    for (const Observation& seen : InspectSetup(paths_)) {
      if (seen.id == id) return seen;
    }
    return {};
  }
  Observation Of(Runtime runtime) {
    auto all = InspectRuntimes(runner_, paths_, {"", root_ + "/c.sock"}, {runtime}, {});
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Observation{} : all[0];
  }
  void InstallCriu(const std::string& version, const std::string& on = "") {
    runner_.Install("criu", "/sbin/criu", on);
    runner_.Answer("/sbin/criu --version", "Version: " + version + "\n");
  }

  std::string root_, library_;
  SetupPaths paths_;
  FakeRunner runner_;
};

TEST_F(InspectTest, SetupIsSeenAndUndone) {
  EXPECT_FALSE(IsSetUp(paths_));
  EXPECT_EQ(OfSetup("container-criu").level, Level::kCannot);
  EXPECT_EQ(OfSetup("container-cdi").level, Level::kNote);
  auto done = containers::SetUp(paths_, library_);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_TRUE(done->criu_config_changed && done->cdi_changed);
  EXPECT_TRUE(IsSetUp(paths_));
  for (const Observation& seen : InspectSetup(paths_)) {
    EXPECT_EQ(seen.level, Level::kOk) << seen.found;
  }
  auto again = containers::SetUp(paths_, library_);
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->criu_config_changed || again->cdi_changed);
  auto removed = RemoveSetup(paths_);
  ASSERT_TRUE(removed);
  EXPECT_TRUE(removed->criu_config_changed && removed->cdi_changed);
  EXPECT_FALSE(PathExists(paths_.criu_config)) << "the set-up had made it";
  EXPECT_FALSE(IsSetUp(paths_));
}

TEST_F(InspectTest, TheFilesModeAndLinkStay) {
  ASSERT_TRUE(MakeDirs(root_ + "/etc/criu"));
  ASSERT_TRUE(ReplaceFile(root_ + "/real.conf", "tcp-established\n"));
  ASSERT_EQ(::chmod((root_ + "/real.conf").c_str(), 0640), 0);
  ASSERT_EQ(::symlink((root_ + "/real.conf").c_str(), paths_.criu_config.c_str()), 0);
  ASSERT_TRUE(containers::SetUp(paths_, library_));
  struct stat st;
  ASSERT_EQ(::lstat(paths_.criu_config.c_str(), &st), 0);
  EXPECT_TRUE(S_ISLNK(st.st_mode));
  ASSERT_EQ(::stat(paths_.criu_config.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
  ASSERT_TRUE(RemoveSetup(paths_));
  EXPECT_EQ(*ReadFile(root_ + "/real.conf"), "tcp-established\n");
}

TEST_F(InspectTest, ARefusedSetupChangesNothing) {
  ASSERT_TRUE(MakeDirs(root_ + "/etc/criu"));
  ASSERT_TRUE(ReplaceFile(paths_.criu_config, "libdir /usr/lib/criu\n"));
  EXPECT_FALSE(containers::SetUp(paths_, library_));
  EXPECT_FALSE(PathExists(paths_.cdi_folder));
  const Observation seen = OfSetup("container-criu");
  EXPECT_EQ(seen.level, Level::kCannot);
  EXPECT_NE(seen.found.find("/usr/lib/criu"), std::string::npos);
  ASSERT_EQ(::unlink((paths_.plugin_folder + "/stasis_plugin.so").c_str()), 0);
  auto without = containers::SetUp(paths_, library_);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("stasis_plugin.so"), std::string::npos);
}

TEST_F(InspectTest, ALibdirInRuncsOwnFileCountsMore) {
  ASSERT_TRUE(containers::SetUp(paths_, library_));
  ASSERT_TRUE(ReplaceFile(root_ + "/etc/criu/runc.conf", "libdir /elsewhere\n"));
  EXPECT_EQ(OfSetup("container-criu").level, Level::kCannot);
}

TEST_F(InspectTest, AnAgentThatIsGoneIsNamed) {
  ASSERT_TRUE(containers::SetUp(paths_, library_));
  ASSERT_EQ(::unlink(library_.c_str()), 0);
  const Observation seen = OfSetup("container-cdi");
  EXPECT_EQ(seen.level, Level::kCannot);
  EXPECT_NE(seen.found.find(library_), std::string::npos);
}

TEST_F(InspectTest, RuncNeedsACriuThatIsNewEnough) {
  EXPECT_EQ(Of(Runtime::kRunc).level, Level::kCannot) << "runc is not installed";
  runner_.Install("runc", "/sbin/runc");
  runner_.Answer("/sbin/runc --version", "runc version 1.1.5+ds1\n");
  EXPECT_NE(Of(Runtime::kRunc).found.find("no CRIU"), std::string::npos);
  InstallCriu("3.17.1");
  const Observation old = Of(Runtime::kRunc);
  EXPECT_EQ(old.level, Level::kCannot);
  EXPECT_NE(old.found.find("/sbin/criu is CRIU 3.17.1, and 4.0 is needed"), std::string::npos);
  EXPECT_EQ(old.fix, "`sudo ln -s /opt/stasis/libexec/criu /usr/local/sbin/criu`");
  InstallCriu("4.2.1");
  const Observation good = Of(Runtime::kRunc);
  EXPECT_EQ(good.level, Level::kOk);
  EXPECT_EQ(good.found, "runc 1.1.5, CRIU 4.2.1 at /sbin/criu");
}

TEST_F(InspectTest, PodmanWithCrunWithoutCriuIsNamed) {
  runner_.Install("podman", "/bin/podman");
  InstallCriu("4.1");
  auto info = [&](const std::string& runtime, const std::string& version, const char* rootless) {
    runner_.Answer("/bin/podman info --format json",
                   R"({"host": {"ociRuntime": {"name": ")" + runtime + R"(", "version": ")" +
                       version + R"("}, "security": {"rootless": )" + rootless +
                       R"(}}, "version": {"Version": "4.3.1"}})");
    return Of(Runtime::kPodman);
  };
  const Observation crun = info("crun", "crun version 1.8.1\\n+SYSTEMD +SELINUX", "false");
  EXPECT_EQ(crun.level, Level::kCannot);
  EXPECT_NE(crun.found.find("compiled without CRIU"), std::string::npos);
  EXPECT_NE(crun.fix.find("runtime = \"runc\""), std::string::npos);
  EXPECT_EQ(info("crun", "crun version 1.8.1\\n+SYSTEMD +CRIU", "false").level, Level::kOk);
  EXPECT_EQ(info("runc", "runc version 1.1.5", "false").level, Level::kOk);
  EXPECT_EQ(info("runc", "runc version 1.1.5", "true").level, Level::kWarning);
  runner_.Answer("/bin/podman info --format json", "no JSON");
  EXPECT_EQ(Of(Runtime::kPodman).level, Level::kCannot);
}

TEST_F(InspectTest, ContainerdIsAskedOnlyWhereItRuns) {
  runner_.Install("ctr", "/bin/ctr");
  InstallCriu("4.2.1");
  EXPECT_EQ(Of(Runtime::kContainerd).level, Level::kNote);
  ASSERT_TRUE(ReplaceFile(root_ + "/c.sock", ""));
  runner_.Answer("/bin/ctr --address " + root_ + "/c.sock version",
                 "Client:\n  Version:  1.6.20\n\nServer:\n  Version:  1.6.21~ds1\n");
  const Observation good = Of(Runtime::kContainerd);
  EXPECT_EQ(good.level, Level::kOk);
  EXPECT_NE(good.found.find("containerd 1.6.21"), std::string::npos);
}

TEST_F(InspectTest, OnlyInstalledRuntimesAreLookedAtUnlessNamed) {
  EXPECT_TRUE(InspectRuntimes(runner_, paths_, {}, {}, {}).empty());
  EXPECT_EQ(InspectRuntimes(runner_, paths_, {}, {Runtime::kPodman, Runtime::kRunc}, {}).size(),
            2u);
}

TEST_F(InspectTest, TheDaemonMustListenAtThePluginsSocket) {
  ASSERT_TRUE(ReplaceFile(paths_.plugin_folder + "/stasis_plugin.socket", "/connected.sock\n"));
  EXPECT_EQ(OfSetup("container-daemon").level, Level::kWarning);
  Listen("/other.sock");
  EXPECT_EQ(OfSetup("container-daemon").level, Level::kWarning);
  Listen("/connected.sock");
  EXPECT_EQ(OfSetup("container-daemon").level, Level::kOk);
}

TEST_F(InspectTest, CriuNeedsAProgramThatLocksTheNetwork) {
  InstallCriu("4.2.1");
  FakeRunner bare;
  bare.Install("runc", "/sbin/runc");
  auto all = InspectRuntimes(bare, paths_, {}, {}, {});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].id, "container-network");
  EXPECT_NE(all[1].fix.find("network-lock nftables"), std::string::npos) << all[1].fix;
  ASSERT_TRUE(MakeDirs(root_ + "/etc/criu"));
  ASSERT_TRUE(ReplaceFile(paths_.criu_config, "network-lock nftables\n"));
  EXPECT_EQ(InspectRuntimes(bare, paths_, {}, {}, {}).size(), 1u);
}

TEST(HookMountsTest, NvidiasHookMountsItsFilesInProc) {
  const std::string usual =
      "22 1 0:20 / / rw - overlay overlay rw\n23 22 0:21 / /proc rw - proc proc rw\n"
      "24 22 8:1 /usr/lib/libcuda.so.580 /usr/lib/libcuda.so.580 ro - ext4 /dev/sda1 rw\n";
  EXPECT_FALSE(HasNvidiaHookMounts(usual));
  EXPECT_TRUE(
      HasNvidiaHookMounts(usual + "30 23 0:40 / /proc/driver/nvidia ro - tmpfs tmpfs rw\n"));
}

}  // namespace
}  // namespace stasis::containers
