#include "api/share_waiters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace stasis::api {
namespace {

using std::chrono::milliseconds;

// A picture whose version the test changes.
class Picture {
 public:
  ShareWaiters::Picture Functions() {
    return {[this] { return version.load(); },
            [this](uint64_t known, std::function<void()> changed) {
              {
                std::lock_guard lock(mutex_);
                if (known == version) {
                  registered_.push_back(std::move(changed));
                  return;
                }
              }
              changed();
            }};
  }
  void Change() {
    std::vector<std::function<void()>> all;
    {
      std::lock_guard lock(mutex_);
      ++version;
      all.swap(registered_);
    }
    for (auto& one : all) one();
  }
  size_t registered() {
    std::lock_guard lock(mutex_);
    return registered_.size();
  }
  std::atomic<uint64_t> version{1};

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> registered_;
};

template <class Condition>
void Await(Condition condition) {
  for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(condition());
}

TEST(ShareWaitersTest, CallsAreAnsweredAfterAChange) {
  Picture picture;
  auto waiters = ShareWaiters::Start(picture.Functions(), milliseconds(1));
  ASSERT_TRUE(waiters);
  std::atomic<int> answers{0};
  for (int i = 0; i < 3; ++i) (*waiters)->Add((*waiters)->NewNumber(), 1, [&] { ++answers; });
  Await([&] { return picture.registered() == 1; });
  EXPECT_EQ(answers, 0);
  picture.Change();
  Await([&] { return answers == 3; });
  // A call with an old version is answered at once.
  (*waiters)->Add((*waiters)->NewNumber(), 1, [&] { ++answers; });
  Await([&] { return answers == 4; });
  EXPECT_EQ((*waiters)->count(), 0u);
}

TEST(ShareWaitersTest, CancelledCallsLeaveNothingBehind) {
  Picture picture;
  auto waiters = ShareWaiters::Start(picture.Functions(), milliseconds(1));
  ASSERT_TRUE(waiters);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t number = (*waiters)->NewNumber();
    (*waiters)->Add(number, 1, [] { ADD_FAILURE() << "it was cancelled"; });
    (*waiters)->Remove(number);
  }
  EXPECT_EQ((*waiters)->count(), 0u);
  EXPECT_LE(picture.registered(), 1u);
  picture.Change();
}

TEST(ShareWaitersTest, ManyChangesAreOneAnswer) {
  Picture picture;
  auto waiters = ShareWaiters::Start(picture.Functions(), milliseconds(100000));
  ASSERT_TRUE(waiters);
  std::atomic<int> answers{0};
  (*waiters)->Add((*waiters)->NewNumber(), 0, [&] { ++answers; });
  Await([&] { return answers == 1; });
  // The next answer is due in 100 s.
  for (int i = 0; i < 100; ++i) {
    (*waiters)->Add((*waiters)->NewNumber(), picture.version, [&] { ++answers; });
    picture.Change();
  }
  EXPECT_EQ(answers, 1);
  EXPECT_EQ((*waiters)->count(), 100u);
}

}  // namespace
}  // namespace stasis::api
