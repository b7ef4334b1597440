#include "checkpoint/image_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace stasis::checkpoint {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLong{60};

std::unique_ptr<ImageProcess> Start(std::map<std::string, ImageProcess::Task> tasks) {
  auto started = ImageProcess::Start(std::move(tasks), {}, "/store");
  EXPECT_TRUE(started) << started.error().ToString();
  return std::move(*started);
}

Result<std::string> Hang(const std::string&, const Progress&) {
  while (true) ::pause();
}

TEST(ImageProcess, TasksShareWhatTheyHaveDone) {
  std::string kept;
  auto process = Start(
      {{"first",
        [&](const std::string& request, const Progress& progress) {
          progress(1, 2);
          kept = request;
          return Result<std::string>("done");
        }},
       {"second", [&](const std::string&, const Progress&) { return Result<std::string>(kept); }}});
  uint64_t done = 0, total = 0;
  auto first = process->Run("first", "a letter", Deadline::In(kLong), [&](uint64_t d, uint64_t t) {
    done = d, total = t;
    return true;
  });
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_EQ(*first, "done");
  EXPECT_EQ(done, 1u);
  EXPECT_EQ(total, 2u);
  auto second = process->Run("second", "", Deadline::In(kLong), nullptr);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_EQ(*second, "a letter");
  EXPECT_TRUE(kept.empty());
}

TEST(ImageProcess, ReturnsTheErrorOfATask) {
  auto process = Start({{"task", [](const std::string&, const Progress&) -> Result<std::string> {
                           return Fail(Code::kResourceExhausted, "the disk is full", "buy one");
                         }}});
  auto answer = process->Run("task", "", Deadline::In(kLong), nullptr);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kResourceExhausted);
  EXPECT_EQ(answer.error().message, "the disk is full");
  EXPECT_EQ(answer.error().hint, "buy one");
}

TEST(ImageProcess, AHungChildIsKilledAfterTheDeadline) {
  auto process = Start({{"task", Hang}});
  auto answer = process->Run("task", "", Deadline::In(milliseconds(50)), nullptr);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
  EXPECT_EQ(process->stuck(), "");
}

// A request that does not fit into the socket's buffer waits for its reader.
TEST(ImageProcess, AStoppedChildIsKilledAfterTheDeadlineOfALongRequest) {
  auto stop = [](const std::string&, const Progress& progress) -> Result<std::string> {
    progress(static_cast<uint64_t>(::getpid()), 0);
    ::kill(::getpid(), SIGSTOP);
    return "";
  };
  auto process = Start({{"stop", stop}, {"task", Hang}});
  std::promise<uint64_t> told;
  std::thread stopper([&] {
    (void)process->Run("stop", "", Deadline::In(kLong), [&](uint64_t pid, uint64_t) {
      told.set_value(pid);
      return true;
    });
  });
  siginfo_t info;
  const auto pid = static_cast<id_t>(told.get_future().get());
  EXPECT_EQ(::waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT), 0);
  const std::string request(64u << 20, 'x');
  auto answer = process->Run("task", request, Deadline::In(milliseconds(50)), nullptr);
  stopper.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
}

TEST(ImageProcess, ATaskAnswersAgain) {
  int asked = 0;
  auto process = Start({{"task", [&](const std::string&, const Progress&) {
                           return Result<std::string>(std::to_string(++asked));
                         }}});
  for (const char* answer : {"1", "2"}) {
    auto again = process->RunWhileItMoves("task", "", kLong);
    ASSERT_TRUE(again) << again.error().ToString();
    EXPECT_EQ(*again, answer);
  }
}

TEST(ImageProcess, AChildWithoutProgressIsKilled) {
  auto process = Start({{"task", [](const std::string&, const Progress& progress) {
                           progress(1, 0);
                           return Hang("", progress);
                         }}});
  auto answer = process->RunWhileItMoves("task", "", milliseconds(50));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
  auto after = process->RunWhileItMoves("task", "", kLong);
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code, Code::kCancelled);
}

TEST(ImageProcess, EndWakesWaitingThreads) {
  auto process = Start({{"task", Hang}});
  std::thread ender([&] { process->End(); });
  auto answer = process->Run("task", "", Deadline::In(kLong), nullptr);
  ender.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kCancelled);
}

TEST(ImageProcess, ADeadChildIsReported) {
  auto process = Start({{"task", [](const std::string&, const Progress&) -> Result<std::string> {
                           ::kill(::getpid(), SIGKILL);
                           return "";
                         }}});
  auto answer = process->Run("task", "", Deadline::In(kLong), nullptr);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kInternal);
}

}  // namespace
}  // namespace stasis::checkpoint
