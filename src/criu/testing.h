// Test helpers of this directory: a scratch directory, a target process, and waiting.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "criu/client.h"
#include "criu/probe.h"
#include "process/tree.h"

namespace stasis::criu::testing {

constexpr auto kPatience = std::chrono::seconds(30);

// Waits until `condition` holds. Returns false after `kPatience`.
inline bool Eventually(const std::function<bool()>& condition) {
  Deadline deadline = Deadline::In(kPatience);
  while (!condition()) {
    if (deadline.passed()) return false;
    ::usleep(2000);
  }
  return true;
}

// Base class of tests that dump or restore.
class WithCriu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Status able = CheckPrivileges(); !able) GTEST_SKIP() << able.error().message;
  }
};

// The program tests/criu/target.cc and its working directory. The destructor kills and reaps all of
// its processes, restored or not; the test process is their subreaper.
class Target {
 public:
  explicit Target(std::vector<std::string> what, std::map<int, int> fds = {},
                  bool new_session = true, std::vector<std::string> launcher = {}) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    char name[] = "/tmp/stasis-criu-test.XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    SpawnOptions spawn;
    spawn.argv = std::move(launcher);
    spawn.argv.insert(spawn.argv.end(), {STASIS_CRIU_TARGET, state_path()});
    spawn.argv.insert(spawn.argv.end(), what.begin(), what.end());
    spawn.new_session = new_session;
    spawn.fds = std::move(fds);
    auto null = Open("/dev/null", O_RDWR);
    spawn.fds.try_emplace(2, null->get());
    auto child = Subprocess::Spawn(spawn);
    EXPECT_TRUE(child) << (child ? "" : child.error().ToString());
    pid_ = child->pid();
    EXPECT_TRUE(Counts()) << State();
    launcher_ = pid_;
    auto tree = process::ReadTree(pid());
    for (const auto& member : tree->members) {
      if (member.comm == "criu_target") {
        pid_ = member.id.pid.value;
        break;
      }
    }
  }
  ~Target() {
    Kill();
    EXPECT_TRUE(RemoveTree(directory_));
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  process::HostPid pid() const { return {pid_}; }
  process::HostPid launcher() const { return {launcher_}; }
  const std::string& directory() const { return directory_; }
  std::string state_path() const { return directory_ + "/state"; }
  std::string images() const { return directory_ + "/images"; }
  std::string log() const { return directory_ + "/criu.log"; }
  std::string State() const { return ReadFile(state_path()).value_or("(no state)"); }
  std::string Log() const { return ReadFile(log()).value_or("(no log)"); }
  long Count() const {
    std::string state = State();
    return state.starts_with("count") ? std::atol(state.c_str() + 5) : -1;
  }
  // Returns true if the program is running and its checks succeed.
  bool Counts() const {
    long before = std::max(Count(), 0L);
    return Eventually([&] { return Count() > before + 1; });
  }
  // Waits for the whole tree to exit and reaps it. Returns the wait status of the root. A zombie
  // would make a restore fail, because it occupies the pid.
  int Reap() const {
    int root_status = -1, status;
    for (pid_t pid; (pid = TEMP_FAILURE_RETRY(::waitpid(-1, &status, 0))) > 0;) {
      if (pid == pid_) root_status = status;
    }
    return root_status;
  }
  // Kills and reaps all descendants of this process, including orphans, which it adopts.
  void Kill() {
    auto tree = process::ReadTree({::getpid()});
    ASSERT_TRUE(tree) << tree.error().ToString();
    for (const auto& member : tree->members) {
      if (member.id.pid.value != ::getpid()) ::kill(member.id.pid.value, SIGKILL);
    }
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }

  DumpRequest Dump() const {
    EXPECT_TRUE(MakeDirs(images()));
    DumpRequest request;
    request.pid = pid();
    request.images_dir = images();
    request.log_path = log();
    return request;
  }
  RestoreRequest Restore() const {
    RestoreRequest request;
    request.images_dir = images();
    request.log_path = log();
    return request;
  }

 private:
  std::string directory_;
  pid_t pid_ = -1;
  pid_t launcher_ = -1;  // the process that started the target, or the target
};

// Returns the path of CRIU from the test's environment, or an empty string, which makes FindCriu()
// search for CRIU.
inline std::string ChosenCriu() {
  const char* named = std::getenv("STASIS_CRIU");
  return named == nullptr ? "" : named;
}

inline Session MustSpawn(const std::map<int, int>& fds = {}) {
  auto path = FindCriu(ChosenCriu());
  auto session = path ? Session::Spawn(*path, fds) : Result<Session>(Fail(path.error()));
  EXPECT_TRUE(session) << session.error().ToString();
  return session ? std::move(*session) : Session::OverSocket(UniqueFd());
}

inline Deadline Soon() { return Deadline::In(kPatience); }

template <class T>
::testing::AssertionResult IsOk(const Result<T>& result) {
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.error().ToString();
}

}  // namespace stasis::criu::testing
