// Test helper: a process in which no thread can be started.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

namespace stasis {

// Runs `test` in a child process that has reached RLIMIT_NPROC, as an unprivileged user. `test`
// returns an empty string, or a description of the failure.
inline void ExpectWithoutThreads(const std::function<std::string()>& test) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kUser = 64321;
    const rlimit none{0, 0};
    std::string wrong = "no limit could be set";
    if ((::geteuid() != 0 || ::setresuid(kUser, kUser, kUser) == 0) &&
        ::setrlimit(RLIMIT_NPROC, &none) == 0) {
      wrong = test();
    }
    if (!wrong.empty()) std::fprintf(stderr, "without threads: %s\n", wrong.c_str());
    ::_exit(wrong.empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "it was killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace stasis
