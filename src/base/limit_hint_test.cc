#include "base/limit_hint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stasis {
namespace {

// Sets the limit in a child process, so that this process keeps its own.
bool HintNames(__rlimit_resource resource, rlim_t soft, const std::string& words) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(resource, &limit);
    limit.rlim_cur = soft;
    const bool set = ::setrlimit(resource, &limit) == 0;
    ::_exit(set && LikelyLimitHint().find(words) != std::string::npos ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST(LimitHintTest, TheLimitIsNamedWithItsValue) {
  EXPECT_TRUE(HintNames(RLIMIT_CPU, 4711, "CPU time (`ulimit -t`)"));
  EXPECT_TRUE(HintNames(RLIMIT_CPU, 4711, "which is 4711 s"));
  EXPECT_TRUE(HintNames(RLIMIT_DATA, rlim_t{1} << 50, "which is 1125899906842624 bytes"));
}

TEST(LimitHintTest, OnlyAFewOpenFilesAreALikelyReason) {
  EXPECT_TRUE(HintNames(RLIMIT_NOFILE, 64, "open files (`ulimit -n`)"));
  EXPECT_FALSE(HintNames(RLIMIT_NOFILE, 512, "open files"));
}

}  // namespace
}  // namespace stasis
