// A gpu_target process (testing/gpu_target_main.cc) controlled by a test, and a temporary directory
// for its files.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "process/proc.h"

namespace stasis::device::cuda::testing {

using std::chrono::milliseconds;

// A directory that is removed after the test.
class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/stasis-device-test.XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Sets an environment variable until the end of the scope; null unsets it.
class ScopedEnv {
 public:
  ScopedEnv(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    Set(value);
  }
  ~ScopedEnv() { Set(before_ ? before_->c_str() : nullptr); }
  ScopedEnv(const ScopedEnv&) = delete;

 private:
  void Set(const char* value) {
    value == nullptr ? ::unsetenv(name_.c_str()) : ::setenv(name_.c_str(), value, 1);
  }
  std::string name_;
  std::optional<std::string> before_;
};

inline std::string TestFile(const std::string& name) { return *InstallRoot() + "/tests/" + name; }

class Target {
 public:
  // Starts the target with the driver in directory `library_dir` and the test's own environment.
  explicit Target(const std::string& library_dir) {
    int in[2], out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    UniqueFd child_in(in[0]), child_out(out[1]);
    in_.Reset(in[1]);
    out_.Reset(out[0]);
    ScopedEnv library("LD_LIBRARY_PATH", library_dir.c_str());
    auto child = Subprocess::Spawn(
        {.argv = {TestFile("gpu_target")}, .fds = {{0, child_in.get()}, {1, child_out.get()}}});
    if (!child) {
      ADD_FAILURE() << child.error().ToString();
      return;
    }
    child_ = std::move(*child);
    EXPECT_EQ(Answer(), "ok");
  }
  ~Target() { End(); }

  process::HostPid pid() const { return {child_.pid()}; }

  void End() {
    if (in_.valid()) {
      child_.Kill(SIGKILL);
      EXPECT_TRUE(child_.Wait());
    }
    in_.Reset();
  }
  // Kills the process without reaping it.
  void KillOnly() {
    child_.Kill(SIGKILL);
    pollfd p{child_.pidfd(), POLLIN, 0};
    ::poll(&p, 1, 10000);
  }

  // Returns the answer to a command, or "timeout" if none arrives (a process whose GPU is locked
  // answers late).
  std::string Command(const std::string& line, milliseconds limit = std::chrono::seconds(60)) {
    Send(line);
    return Answer(limit);
  }
  void Send(const std::string& line) { EXPECT_TRUE(WriteAll(in_.get(), line + "\n")); }
  std::string Answer(milliseconds limit = std::chrono::seconds(60)) {
    Deadline deadline = Deadline::In(limit);
    std::string line;
    for (char c;;) {
      pollfd p{out_.get(), POLLIN, 0};
      if (::poll(&p, 1, deadline.PollTimeout()) <= 0) return "timeout";
      if (::read(out_.get(), &c, 1) <= 0) return "ended";
      if (c == '\n') return line;
      line += c;
    }
  }
  // Parses "ok 4711" to 4711.
  pid_t CommandForPid(const std::string& line) {
    std::string answer = Command(line);
    EXPECT_TRUE(answer.starts_with("ok ")) << answer;
    return answer.starts_with("ok ") ? std::atoi(answer.c_str() + 3) : -1;
  }

 private:
  Subprocess child_;
  UniqueFd in_, out_;
};

// Counts the child processes that run `program`.
inline int CountChildren(const std::string& program) {
  int count = 0;
  auto names = ListDir("/proc");
  for (const auto& name : *names) {
    process::HostPid pid{std::atoi(name.c_str())};
    if (pid.value <= 0) continue;
    auto stat = process::ReadStat(pid);
    if (!stat || stat->parent.value != ::getpid()) continue;
    auto exe = process::ReadExecutable(pid);
    if (stat->state == 'Z' || (exe && exe->ends_with(program))) ++count;
  }
  return count;
}

}  // namespace stasis::device::cuda::testing
