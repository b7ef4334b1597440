#include "base/parallel.h"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/no_threads_testing.h"

namespace stasis {
namespace {

TEST(ThreadTest, TheDestructorWaitsForTheThread) {
  std::atomic<bool> done = false;
  {
    auto thread = Thread::Start([&] { done = true; });
    ASSERT_TRUE(thread) << thread.error().ToString();
  }
  EXPECT_TRUE(done);
}

TEST(ThreadTest, AtTheLimitTheErrorNamesIt) {
  ExpectWithoutThreads([]() -> std::string {
    auto thread = Thread::Start([] {});
    if (thread) return "it was started";
    const Error& error = thread.error();
    if (error.code != Code::kResourceExhausted) return "another code: " + error.ToString();
    if (error.ToString().find("0 for this user (ulimit -u)") == std::string::npos ||
        error.hint.find("ulimit -u") == std::string::npos) {
      return "it does not name the limit: " + error.ToString() + " " + error.hint;
    }
    return "";
  });
}

TEST(ParallelTest, EachStepHasItsOwnThread) {
  std::mutex mutex;
  std::set<std::thread::id> threads = {std::this_thread::get_id()};
  const Status status = InParallel(4, [&](size_t) -> Status {
    std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    return {};
  });
  EXPECT_TRUE(status);
  EXPECT_GE(threads.size(), 2u);  // thread ids are reused
}

TEST(ParallelTest, TheErrorIsThatOfTheLowestIndex) {
  const Status status = InParallel(5, [](size_t i) -> Status {
    if (i >= 2) return Fail(Code::kInternal, std::to_string(i));
    return {};
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "2");
}

TEST(ParallelTest, AnErrorStopsTheWork) {
  std::atomic<uint64_t> done = 0;
  const Status status = ForEachWithProgress(
      100'000,
      [&](size_t i) -> Status {
        if (i == 7) return Fail(Code::kInternal, "seven");
        ++done;
        return {};
      },
      done, 100'000, nullptr);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "seven");
  EXPECT_LT(done, 99'999u);
}

TEST(ParallelTest, ProgressIsToldAndMayCancel) {
  std::atomic<uint64_t> done = 0;
  uint64_t told = 0;
  auto count = [&](size_t) -> Status {
    ++done;
    return {};
  };
  auto tell = [&](uint64_t now, uint64_t total) {
    told = now;
    return total == 5;
  };
  EXPECT_TRUE(ForEachWithProgress(5, count, done, 5, tell));
  EXPECT_EQ(told, 5u);
  EXPECT_TRUE(ForEachWithProgress(0, count, done, 5, tell));
  const Status cancelled = ForEachWithProgress(5, count, done, 6, tell);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::kCancelled);
}

TEST(ParallelTest, AtTheLimitTheCallerDoesTheWork) {
  ExpectWithoutThreads([]() -> std::string {
    std::string order;
    if (!InParallel(3, [&](size_t i) -> Status {
          order += std::to_string(i);
          return {};
        })) {
      return "InParallel failed";
    }
    const std::atomic<uint64_t> done = 0;
    auto add = [&](size_t i) -> Status {
      order += std::to_string(i);
      return {};
    };
    if (!ForEachWithProgress(3, add, done, 0, nullptr)) return "ForEachWithProgress failed";
    if (!StartThreads(2, [] {}).empty()) return "a thread was started";
    auto beside = RunBeside([&]() -> Status {
      order += "b";
      return Fail(Code::kInternal, "its own error");
    });
    if (order != "012012b") return "done: " + order;
    if (beside.get().error().message != "its own error") return "the error was lost";
    return "";
  });
}

}  // namespace
}  // namespace stasis
