#include "device/hip/queues.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace stasis::device::hip {
namespace {

pid_t g_target = 0;

int TracerOf(pid_t pid) {
  auto status = ReadFile("/proc/" + std::to_string(pid) + "/status");
  if (!status) return -1;
  const size_t at = status->find("TracerPid:");
  return at == std::string::npos ? -1 : std::atoi(status->c_str() + at + 10);
}

// As the kernel driver: refuses a caller that does not trace the process.
int Unpause(int fd) {
  if (TracerOf(g_target) != ::getpid()) return EINVAL;
  return ::write(fd, "continued", 9) == 9 ? 0 : errno;
}
int NotStopped(int) { return EINVAL; }
int HangsForever(int) {
  for (;;) ::pause();
}
int IsRefused(int) { return EACCES; }

// A process that has a file open, in place of /dev/kfd.
class QueuesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/queues-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    kfd_.device = folder_ + "/kfd";
    ASSERT_TRUE(ReplaceFile(kfd_.device, ""));
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    pid_ = g_target = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
      if (::open(kfd_.device.c_str(), O_RDWR) < 0 || ::write(ready[1], "", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void TearDown() override {
    End();
    ASSERT_TRUE(RemoveTree(folder_));
  }
  void End() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  Result<bool> Continue(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    return ContinueQueuesOf({g_target}, kfd_, Deadline::In(limit));
  }

  std::string folder_;
  Kfd kfd_;
  pid_t pid_ = 0;
};

TEST_F(QueuesTest, TheProcessIsTracedForTheOperationOnly) {
  kfd_.unpause = Unpause;
  const auto done = Continue();
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_TRUE(*done);
  EXPECT_EQ(*ReadFile(kfd_.device), "continued");
  EXPECT_EQ(TracerOf(pid_), 0);
  EXPECT_EQ(::waitpid(pid_, nullptr, WNOHANG | WUNTRACED), 0) << "the process runs";
}

TEST_F(QueuesTest, QueuesThatRunAreNoError) {
  kfd_.unpause = NotStopped;
  EXPECT_TRUE(Continue());
}

TEST_F(QueuesTest, ARefusalIsAnError) {
  kfd_.unpause = IsRefused;
  const auto refused = Continue();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message.find("the operation UNPAUSE of " + kfd_.device), 0u)
      << refused.error().message;
  EXPECT_EQ(refused.error().raw, EACCES);
}

TEST_F(QueuesTest, AHungDriverIsLeftAtTheDeadline) {
  kfd_.unpause = HangsForever;
  const auto hung = Continue(std::chrono::milliseconds(50));
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code, Code::kDeadlineExceeded);
}

TEST_F(QueuesTest, AFileThatIsNotTheKernelDriverRefusesTheOperation) {
  EXPECT_EQ(Continue().error().raw, ENOTTY);
}

TEST_F(QueuesTest, AProcessWithoutTheDeviceHasNoQueues) {
  kfd_.device = folder_ + "/other";
  EXPECT_FALSE(*Continue());
  EXPECT_TRUE(ContinueQueues({pid_}, Deadline::In(std::chrono::seconds(20))));
}

TEST_F(QueuesTest, AnEndedProcessHasNoQueues) {
  End();
  EXPECT_FALSE(*Continue());
}

}  // namespace
}  // namespace stasis::device::hip
