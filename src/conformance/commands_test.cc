#include "conformance/commands.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <map>

#include "base/file.h"

namespace stasis::conformance {
namespace {

using std::chrono::milliseconds;

// An installation whose programs are shell scripts.
class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/conformance-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    root_ = folder;
    ::setenv("TMPDIR", folder, 1);
    Script("bin/stasis", "");
    Script("workloads/hip_probe", "");
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    ASSERT_TRUE(RemoveTree(root_));
  }

  void Script(const std::string& name, const std::string& text) {
    const std::string path = root_ + "/" + name;
    ASSERT_TRUE(MakeDirs(path.substr(0, path.rfind('/'))));
    ASSERT_TRUE(ReplaceFile(path, "#!/bin/sh\n" + text + "\n"));
    ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  }
  std::unique_ptr<Commands> Make() {
    auto made = MakeCommands(root_);
    EXPECT_TRUE(made) << made.error().ToString();
    return std::move(*made);
  }

  std::string root_;
};

TEST_F(CommandsTest, RunsInAFolderOfItsOwnAndRemovesIt) {
  Script("bin/stasis",
         "echo \"$@\"; echo \"$STASIS_STATE_DIR\" >&2; mkdir \"$STASIS_STATE_DIR\"; exit 3");
  std::string state;
  {
    auto commands = Make();
    const Ran ran = commands->Stasis({"suspend", "job"}, milliseconds(20000));
    EXPECT_EQ(ran.code, 3);
    EXPECT_EQ(ran.out, "--no-daemon suspend job\n");
    state = ran.err.substr(0, ran.err.find('\n'));
    EXPECT_TRUE(PathExists(state));
  }
  EXPECT_FALSE(PathExists(state.substr(0, state.rfind('/'))));
}

TEST_F(CommandsTest, TheUsersOwnSettingsAreNotUsed) {
  Script("bin/stasis", "env | grep ^STASIS_; cat \"$STASIS_CONFIG\"");
  const std::map<std::string, std::string> users = {{"STASIS_ARENA_DIR", "/users"},
                                                    {"STASIS_SPILL_DIR", "/users"},
                                                    {"STASIS_CONFIG", "/users"},
                                                    {"STASIS_SHARE", "batch"},
                                                    {"STASIS_CRIU", "/criu"}};
  for (const auto& [name, value] : users) ::setenv(name.c_str(), value.c_str(), 1);
  std::string arena;
  {
    auto commands = Make();
    const Ran ran = commands->Stasis({}, milliseconds(20000));
    EXPECT_EQ(ran.out.find("/users"), std::string::npos) << ran.out;
    EXPECT_EQ(ran.out.find("STASIS_SHARE"), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("STASIS_CRIU=/criu\n"), std::string::npos) << ran.out;
    const size_t at = ran.out.find("STASIS_ARENA_DIR=") + std::string("STASIS_ARENA_DIR=").size();
    arena = ran.out.substr(at, ran.out.find('\n', at) - at);
    EXPECT_TRUE(PathExists(arena)) << arena;
    struct statfs place {};
    ASSERT_EQ(::statfs(arena.c_str(), &place), 0);
    EXPECT_EQ(place.f_type, TMPFS_MAGIC);
  }
  EXPECT_FALSE(PathExists(arena));
  for (const auto& [name, value] : users) ::unsetenv(name.c_str());
}

TEST_F(CommandsTest, ACommandThatHangsIsInterrupted) {
  Script("workloads/hip_probe", "exec sleep 1000");
  const Ran ran = Make()->Probe({}, milliseconds(50));
  EXPECT_EQ(ran.code, -1);
  EXPECT_EQ(ran.how, "did not end in 0 s and was interrupted");
}

TEST_F(CommandsTest, PassesTheLibrary) {
  Script("workloads/hip_probe", "echo $STASIS_CUDA_LIBRARY");
  auto commands = Make();
  commands->UseLibrary("/hip.so");
  EXPECT_EQ(commands->Probe({}, milliseconds(20000)).out, "/hip.so\n");
}

TEST_F(CommandsTest, AwaitsLines) {
  const std::string log = root_ + "/log";
  ASSERT_TRUE(ReplaceFile(log, "ROUND 1\n"));
  Script("workloads/hip_probe", "(sleep 0.1; echo ROUND 2; echo ROUND 3) >>" + log + " &");
  auto commands = Make();
  EXPECT_EQ(commands->Probe({}, milliseconds(20000)).code, 0);
  EXPECT_TRUE(commands->AwaitLines(log, "ROUND ", 2, milliseconds(20000)));
  const Status late = commands->AwaitLines(log, "ROUND ", 1, milliseconds(20));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded);
  ASSERT_TRUE(ReplaceFile(log, "FAILED: byte 3 differs\n"));
  const Status failed = commands->AwaitLines(log, "ROUND ", 1, milliseconds(20000));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "the program reports: FAILED: byte 3 differs");
}

TEST_F(CommandsTest, AnInstallationWithoutTheProgramIsRefused) {
  ASSERT_TRUE(RemoveFile(root_ + "/workloads/hip_probe"));
  auto made = MakeCommands(root_);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace stasis::conformance
