#include "api/arena_reserve.h"

#include <gtest/gtest.h>

#include <vector>

namespace stasis::api {
namespace {

using Done = std::function<void(Result<v1::ReadyArenasResponse>)>;

class ArenaReserveTest : public ::testing::Test {
 protected:
  static v1::ReadyArenasRequest Needs(std::initializer_list<uint64_t> bytes) {
    v1::ReadyArenasRequest needs;
    for (uint64_t one : bytes) needs.add_needs()->set_bytes(one);
    return needs;
  }
  void Set(const std::string& entry, v1::ReadyArenasRequest needs) {
    reserve_.SetNeeds(entry, {}, std::move(needs), room_bytes_);
  }
  // Ends the first worker that has not ended.
  void End(uint64_t ready_bytes) {
    const Done done = std::move(workers_.front());
    workers_.erase(workers_.begin());
    v1::ReadyArenasResponse response;
    response.set_ready_bytes(ready_bytes);
    done(response);
  }

  uint64_t room_bytes_ = 1000;
  std::vector<v1::ReadyArenasRequest> requests_;  // of all workers
  std::vector<Done> workers_;
  ArenaReserve reserve_{100, [this](const v1::WorkerRequest& work, Done done) {
                          EXPECT_EQ(work.method(), "ReadyArenas");
                          v1::ReadyArenasRequest request;
                          EXPECT_TRUE(request.ParseFromString(work.request()));
                          requests_.push_back(request);
                          workers_.push_back(std::move(done));
                        }};
};

TEST_F(ArenaReserveTest, StartsAWorkerWhenTheNeedsChange) {
  Set("a", Needs({}));
  EXPECT_TRUE(requests_.empty());
  Set("a", Needs({10}));
  ASSERT_EQ(requests_.size(), 1u);
  End(10);
  Set("a", Needs({10}));
  EXPECT_EQ(requests_.size(), 1u);
  Set("a", Needs({}));
  ASSERT_EQ(requests_.size(), 2u) << "gives the memory back";
  End(0);
  Set("a", Needs({}));
  EXPECT_EQ(requests_.size(), 2u);
}

TEST_F(ArenaReserveTest, RunsOneWorkerAtATime) {
  Set("a", Needs({10}));
  Set("a", Needs({20}));
  Set("a", Needs({30}));
  Set("b", Needs({5}));
  EXPECT_EQ(workers_.size(), 2u) << "one for each set of folders";
  End(10);
  ASSERT_EQ(requests_.size(), 3u);
  EXPECT_EQ(requests_.back().needs(0).bytes(), 30u) << "the last needs only";
}

TEST_F(ArenaReserveTest, TheLimitIsForAllUsers) {
  Set("a", Needs({60}));
  EXPECT_EQ(requests_.back().most_bytes(), 100u);
  End(60);
  Set("b", Needs({60}));
  EXPECT_EQ(requests_.back().most_bytes(), 40u);
  End(40);
  Set("a", Needs({70}));
  EXPECT_EQ(requests_.back().most_bytes(), 60u);
}

TEST_F(ArenaReserveTest, AWorkerKnowsWhatIsReadyForOthers) {
  Set("a", Needs({60}));
  EXPECT_EQ(requests_.back().others_ready_bytes(), 0u);
  End(60);
  Set("b", Needs({10}));
  EXPECT_EQ(requests_.back().others_ready_bytes(), 60u);
  End(10);
  Set("c", Needs({10}));
  EXPECT_EQ(requests_.back().others_ready_bytes(), 70u);
  EXPECT_EQ(reserve_.ReadyBytes("a"), 60u);
  EXPECT_EQ(reserve_.ReadyBytes("d"), 0u);
}

TEST_F(ArenaReserveTest, FalseAnswersCannotWrapTheSum) {
  Set("a", Needs({60}));
  End(UINT64_MAX);
  Set("b", Needs({60}));
  End(UINT64_MAX);
  Set("c", Needs({60}));
  EXPECT_EQ(requests_.back().most_bytes(), 0u);
  EXPECT_EQ(requests_.back().others_ready_bytes(), uint64_t{1} << 50);
}

TEST_F(ArenaReserveTest, GivesBackWhenMemoryBecomesScarce) {
  Set("a", Needs({30}));
  End(30);
  Set("b", Needs({20}));
  End(20);
  room_bytes_ = 50;
  Set("a", Needs({30}));
  EXPECT_EQ(requests_.size(), 2u);
  room_bytes_ = 49;
  Set("a", Needs({30}));
  ASSERT_EQ(requests_.size(), 3u);
  Set("a", Needs({30}));
  EXPECT_EQ(requests_.size(), 3u) << "one worker at a time";
  End(25);
  EXPECT_EQ(requests_.size(), 3u);
  Set("a", Needs({30}));
  EXPECT_EQ(requests_.size(), 3u) << "45 are ready now";
}

TEST_F(ArenaReserveTest, AFailureIsNotRepeatedUntilTheNeedsChange) {
  Set("a", Needs({10}));
  const Done done = std::move(workers_.front());
  done(Fail(Code::kUnavailable, "the worker was killed"));
  Set("a", Needs({10}));
  EXPECT_EQ(requests_.size(), 1u);
  Set("a", Needs({11}));
  EXPECT_EQ(requests_.size(), 2u);
}

}  // namespace
}  // namespace stasis::api
