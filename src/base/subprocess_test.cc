#include "base/subprocess.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "base/file.h"

namespace {

bool no_pidfds = false;

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// Replaces libc's syscall().
extern "C" long syscall(long number, ...) noexcept {
  if (no_pidfds && number == SYS_pidfd_open) {
    errno = EMFILE;
    return -1;
  }
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  return Real<long(long, ...)>("syscall")(number, words[0], words[1], words[2], words[3], words[4],
                                          words[5]);
}

// POSIX allows a successful call to change errno.
extern "C" int kill(pid_t pid, int number) noexcept {
  const int result = Real<int(pid_t, int)>("kill")(pid, number);
  if (result == 0) errno = EPERM;
  return result;
}

namespace stasis {
namespace {

TEST(SubprocessTest, AMissingPidfdIsReportedWithItsOwnError) {
  no_pidfds = true;
  auto child = Subprocess::Spawn({.argv = {"/bin/true"}});
  no_pidfds = false;
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().raw, EMFILE) << child.error().ToString();
}

Result<std::string> OutputOf(SpawnOptions options) {
  int fds[2];
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  options.fds[1] = write_end.get();
  STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(options));
  write_end.Reset();
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = ::read(read_end.get(), buffer, sizeof buffer)) > 0;) {
    output.append(buffer, static_cast<size_t>(n));
  }
  STASIS_TRY(child.Wait());
  return output;
}

TEST(SubprocessTest, TheChildHasOnlyTheGivenDescriptors) {
  int extra = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, so that it would leak
  ASSERT_GT(extra, 2);
  // Tests each number, because a program that lists /proc/PID/fd opens a descriptor itself.
  const std::string script =
      "i=0; while [ $i -lt 64 ]; do [ ! -e /proc/$$/fd/$i ] || printf '%s ' $i; i=$((i+1)); done";
  auto output = OutputOf({.argv = {"/bin/sh", "-c", script}, .fds = {{7, extra}}});
  ::close(extra);
  ASSERT_TRUE(output) << output.error().ToString();
  EXPECT_EQ(*output, "0 1 2 7 ");
}

TEST(SubprocessTest, SwappedDescriptorsAreMappedCorrectly) {
  int a = ::open("/dev/null", O_RDONLY), b = ::open("/dev/zero", O_RDONLY);
  auto output = OutputOf(
      {.argv = {"/bin/sh", "-c",
                "readlink /proc/$$/fd/" + std::to_string(a) + " /proc/$$/fd/" + std::to_string(b)},
       .fds = {{a, b}, {b, a}}});
  ::close(a);
  ::close(b);
  ASSERT_TRUE(output);
  EXPECT_EQ(*output, "/dev/zero\n/dev/null\n");
}

TEST(SubprocessTest, MissingProgramIsAnErrorOfSpawn) {
  auto child = Subprocess::Spawn({.argv = {"/proc/no-such-folder/program"}});
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().code, Code::kNotFound);
}

TEST(SubprocessTest, WaitObservesItsDeadlineAndReapsAfterKill) {
  auto child = Subprocess::Spawn({.argv = {"/bin/sleep", "1000"}});
  ASSERT_TRUE(child);
  auto early = child->Wait(Deadline::In(std::chrono::milliseconds(20)));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::kDeadlineExceeded);
  child->Kill(SIGKILL);
  auto status = child->Wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(DescribeWaitStatus(*status), "was killed by signal 9 (Killed)");
}

TEST(SubprocessTest, ScrubbedEnvironmentDropsVariablesThatInjectCode) {
  ::setenv("LD_PRELOAD", "", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  for (const auto& entry : ScrubbedEnvironment()) {
    EXPECT_FALSE(entry.starts_with("LD_PRELOAD="));
    EXPECT_FALSE(entry.starts_with("CUDA_VISIBLE_DEVICES="));
  }
}

}  // namespace
}  // namespace stasis
