// Test helpers of this directory: a temporary store, real jobs under the real shim, and complete
// cleanup.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "jobs/shim_client.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "process/tree.h"

namespace stasis::jobs {

inline Deadline Soon() { return Deadline::In(std::chrono::seconds(20)); }

class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/stasis-jobs-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempFolder() { (void)RemoveTree(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The test is the subreaper of its shims, so that it can wait for their end and find leftovers.
class JobsTest : public ::testing::Test {
 protected:
  JobsTest() : store(folder.path() + "/jobs") {
    ::mkdir((folder.path() + "/jobs").c_str(), 0700);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~JobsTest() override {
    // A failed test may have left jobs.
    do {
      auto tree = process::ReadTree({::getpid()});
      if (!tree) continue;
      for (size_t i = 1; i < tree->members.size(); ++i) {
        ::kill(tree->members[i].id.pid.value, SIGKILL);
      }
    } while (::waitpid(-1, nullptr, 0) > 0);
  }

  // Runs `script` in a shell as the job `id`.
  StartedJob Run(const std::string& id, const std::string& script, const std::string& log = {}) {
    auto started = TryRun(id, {"/bin/sh", "-c", script}, log);
    EXPECT_TRUE(started) << started.error().ToString();
    return started ? *started : StartedJob();
  }
  Result<StartedJob> TryRun(const std::string& id, const std::vector<std::string>& argv,
                            const std::string& log = {}) {
    STASIS_ASSIGN(Claim claim, store.Create({id, argv, "/", log}));
    auto started = StartShimForRun({claim.folder(), {claim.job().log}, argv}, Soon());
    if (!started) STASIS_TRY(claim.Discard());
    return started;
  }
  Job End(const std::string& id) {
    auto job = AwaitEnd(store, id, Soon());
    EXPECT_TRUE(job) << job.error().ToString();
    return job ? *job : Job();
  }
  Job Look(const std::string& id) {
    auto job = store.Load(id);
    EXPECT_TRUE(job) << job.error().ToString();
    return job ? *job : Job();
  }
  std::string LogOf(const std::string& id) {
    return ReadFile(store.Folder(id) + "/log").value_or("(no log)");
  }
  // Blocks until the process has ended, and reaps it if it is a child.
  void AwaitGone(const process::ProcessId& id) {
    auto pidfd = process::OpenPidfd(id);
    if (!pidfd) return;
    pollfd end{pidfd->get(), POLLIN, 0};
    EXPECT_EQ(TEMP_FAILURE_RETRY(::poll(&end, 1, Soon().PollTimeout())), 1) << "still runs";
    ::waitpid(id.pid.value, nullptr, WNOHANG);
  }
  std::vector<std::string> FilesOf(const std::string& id) {
    return ListDir(store.Folder(id)).value_or(std::vector<std::string>{});
  }

  TempFolder folder;
  Store store;
};

// A named pipe for synchronisation between a test and a job's script.
class Fifo {
 public:
  explicit Fifo(std::string path) : path_(std::move(path)) { ::mkfifo(path_.c_str(), 0600); }
  const std::string& path() const { return path_; }
  // Blocks until data is written; returns the first line.
  std::string Read() const {
    UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    std::string line;
    char c;
    while (::read(fd.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  // Blocks until the pipe has a reader.
  void Write(const std::string& text = "go\n") const {
    UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    (void)WriteAll(fd.get(), text);
  }

 private:
  std::string path_;
};

}  // namespace stasis::jobs
