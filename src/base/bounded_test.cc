#include "base/bounded.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/fd.h"

namespace stasis {
namespace {

constexpr std::chrono::seconds kLong{60};

TEST(Bounded, GivesTheAnswer) {
  auto answer = AskBounded([](const NoteStep&) { return Result<std::string>("forty-two"); },
                           Deadline::In(kLong));
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(*answer, "forty-two");
}

TEST(Bounded, GivesTheError) {
  auto answer = AskBounded(
      [](const NoteStep&) -> Result<std::string> {
        return Fail(Code::kNotFound, "no such disk", "buy one");
      },
      Deadline::In(kLong));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kNotFound);
  EXPECT_EQ(answer.error().message, "no such disk");
  EXPECT_EQ(answer.error().hint, "buy one");
}

TEST(Bounded, AHungQuestionIsAbandoned) {
  Stopwatch watch;
  auto answer = AskBounded(
      [](const NoteStep&) -> Result<std::string> {
        while (true) ::pause();
      },
      Deadline::In(std::chrono::milliseconds(50)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
  EXPECT_LT(watch.Seconds(), 30);
}

TEST(Bounded, AQuestionThatProgressesIsNotAbandoned) {
  BoundedOptions options;
  options.each_step = kLong;
  auto answer = AskBounded(
      [](const NoteStep& note) -> Result<std::string> {
        note("remove a file");
        return "removed";
      },
      Deadline::In(std::chrono::milliseconds(0)), options);
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(*answer, "removed");
}

TEST(Bounded, AQuestionThatHangsInAStepIsAbandoned) {
  BoundedOptions options;
  options.each_step = std::chrono::milliseconds(50);
  auto answer = AskBounded(
      [](const NoteStep& note) -> Result<std::string> {
        note("remove a file");
        while (true) ::pause();
      },
      Deadline(), options);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(answer.error().message.find("remove a file"), std::string::npos);
}

TEST(Bounded, AnswersBesideThreadsThatAllocate) {
  std::atomic<bool> done{false};
  auto allocate = [&done] {
    for (size_t size = 1; !done.load(); size = size * 3 % 100'003 + 1) std::string(size, 'x');
  };
  std::thread one(allocate), other(allocate);
  for (int i = 0; i < 50; ++i) {
    auto answer =
        AskBounded([](const NoteStep&) -> Result<std::string> { return std::string(10'000, 'y'); },
                   Deadline::In(std::chrono::seconds(10)));
    EXPECT_TRUE(answer) << answer.error().ToString();
    if (!answer) break;
  }
  done.store(true);
  one.join();
  other.join();
}

TEST(Bounded, ADeadChildIsReported) {
  auto answer = AskBounded(
      [](const NoteStep&) -> Result<std::string> {
        ::raise(SIGKILL);
        return "";
      },
      Deadline::In(kLong));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kInternal);
}

TEST(Bounded, TheErrorNamesTheLastStep) {
  auto answer = AskBounded(
      [](const NoteStep& note) -> Result<std::string> {
        note("open the file");
        note("read the letter");
        while (true) ::pause();
      },
      Deadline::In(std::chrono::milliseconds(200)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message, "could not read the letter in time: the system call hangs");
}

TEST(Bounded, KeepsOnlyTheRequestedDescriptors) {
  UniqueFd kept(::dup(STDERR_FILENO)), other(::dup(STDERR_FILENO));
  BoundedOptions options;
  options.keep_fds = {kept.get()};
  auto answer = AskBounded(
      [&](const NoteStep&) -> Result<std::string> {
        return std::string(::fcntl(kept.get(), F_GETFD) >= 0 ? "kept" : "") +
               (::fcntl(other.get(), F_GETFD) >= 0 ? " other" : "");
      },
      Deadline::In(kLong), options);
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(*answer, "kept");
}

TEST(Bounded, ASignalCancelsIt) {
  static volatile bool asked;
  asked = false;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { asked = true; };
  ::sigaction(SIGUSR1, &action, &before);
  BoundedOptions options;
  options.cancelled = [] { return bool(asked); };
  auto answer = AskBounded(
      [](const NoteStep&) -> Result<std::string> {
        ::kill(::getppid(), SIGUSR1);
        while (true) ::pause();
      },
      Deadline::In(kLong), options);
  ::sigaction(SIGUSR1, &before, nullptr);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kCancelled);
}

}  // namespace
}  // namespace stasis
