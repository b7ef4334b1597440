#include "dataplane/ready_plan.h"

#include <gtest/gtest.h>

namespace stasis::dataplane {
namespace {

ArenaKey Key(int pid) { return {{{pid}, 7}, {"GPU-1"}}; }
ReadyNeed Need(int pid, uint64_t bytes) { return {Key(pid), 1000, bytes}; }

ArenaInfo File(int pid, uint64_t bytes) {
  ArenaInfo info;
  info.key = Key(pid);
  info.capacity_bytes = info.allocated_bytes = bytes;
  return info;
}
ArenaInfo Ready(int pid, uint64_t bytes) {
  ArenaInfo info = File(pid, bytes);
  info.ready = true;
  return info;
}
ArenaInfo Kept(int pid, uint64_t bytes) {
  ArenaInfo info = File(pid, bytes);
  info.kept = true;
  return info;
}

class ReadyPlanTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMib = 1u << 20;
  static constexpr uint64_t kGib = 1u << 30;

  ReadyPlan Plan() const { return PlanReady(needs_, arenas_, bounds_); }

  std::vector<ReadyNeed> needs_;
  std::vector<ArenaInfo> arenas_;
  ReadyBounds bounds_{.most_bytes = 1024 * kGib, .free_bytes = 1024 * kGib};
};

TEST_F(ReadyPlanTest, MakesAsMuchReadyAsProgramsHaveOnTheGpu) {
  needs_ = {Need(1, 3 * kGib + 1), Need(2, kGib)};
  const ReadyPlan plan = Plan();
  EXPECT_EQ(plan.make, (std::vector{Need(1, 3 * kGib + 2 * kMib), Need(2, kGib)}));
  EXPECT_TRUE(plan.free.empty());
}

TEST_F(ReadyPlanTest, DoesNothingForWhatIsReady) {
  needs_ = {Need(1, kGib), Need(2, kGib), Need(3, kGib)};
  arenas_ = {Ready(1, kGib), Kept(2, 2 * kGib), File(3, kMib)};
  EXPECT_TRUE(Plan().make.empty()) << "ready, kept from the last suspend, and suspended now";
}

TEST_F(ReadyPlanTest, GrowsWithTheProgram) {
  needs_ = {Need(1, 5 * kGib), Need(2, 5 * kGib)};
  arenas_ = {Ready(1, kGib), Kept(2, kGib)};
  EXPECT_EQ(Plan().make, needs_);
}

TEST_F(ReadyPlanTest, StaysBelowTheSetting) {
  bounds_.most_bytes = 4 * kGib;
  needs_ = {Need(1, 3 * kGib), Need(2, 3 * kGib), Need(3, 3 * kGib)};
  arenas_ = {Ready(1, 2 * kGib)};
  EXPECT_EQ(Plan().make, (std::vector{Need(1, 3 * kGib), Need(2, kGib)}));
}

TEST_F(ReadyPlanTest, LeavesAsMuchOfALimitFreeAsItUses) {
  bounds_.groups_free_bytes = 10 * kGib;
  arenas_ = {Ready(1, 2 * kGib)};
  needs_ = {Need(1, 2 * kGib), Need(2, 100 * kGib)};
  EXPECT_EQ(Plan().make, (std::vector{Need(2, 4 * kGib)})) << "then 6 are ready and 6 are free";
}

TEST_F(ReadyPlanTest, OtherJobsDoNotCountAgainstALimit) {
  bounds_.complete = false;
  bounds_.groups_free_bytes = 10 * kGib;
  arenas_ = {Ready(7, 100 * kGib), Ready(8, 100 * kGib)};
  needs_ = {Need(1, 5 * kGib)};
  EXPECT_EQ(Plan().make, needs_);
  EXPECT_TRUE(Plan().free.empty());
}

TEST_F(ReadyPlanTest, ALimitThatIsNearGivesBackOnlyItsOwn) {
  bounds_.complete = false;
  bounds_.groups_free_bytes = kGib;
  arenas_ = {Ready(1, 5 * kGib), Ready(7, 5 * kGib)};
  needs_ = {Need(1, 5 * kGib)};
  EXPECT_EQ(Plan().free, std::vector{Key(1)});
}

TEST_F(ReadyPlanTest, MemoryIsScarceIfLessThanHalfAsMuchIsFree) {
  needs_ = {Need(1, 4 * kGib)};
  arenas_ = {Ready(1, 4 * kGib), Ready(7, 4 * kGib)};
  EXPECT_FALSE(IsScarce(needs_, arenas_, bounds_));
  bounds_.free_bytes = 4 * kGib;
  EXPECT_FALSE(IsScarce(needs_, arenas_, bounds_));
  bounds_.free_bytes = 4 * kGib - 1;
  EXPECT_TRUE(IsScarce(needs_, arenas_, bounds_));
  bounds_.free_bytes = 1024 * kGib;
  bounds_.groups_free_bytes = 2 * kGib;
  EXPECT_FALSE(IsScarce(needs_, arenas_, bounds_)) << "of 4 that count against the limit";
  bounds_.groups_free_bytes = 2 * kGib - 1;
  EXPECT_TRUE(IsScarce(needs_, arenas_, bounds_));
}

TEST_F(ReadyPlanTest, LeavesAsMuchMemoryFreeAsItUses) {
  bounds_.free_bytes = 10 * kGib;
  arenas_ = {Ready(1, 2 * kGib)};
  needs_ = {Need(1, 2 * kGib), Need(2, 100 * kGib)};
  EXPECT_EQ(Plan().make, (std::vector{Need(2, 4 * kGib)})) << "then 6 are ready and 6 are free";
}

// Otherwise each user would take half of what the others have left.
TEST_F(ReadyPlanTest, LeavesAsMuchMemoryFreeAsAllUsersHaveReady) {
  bounds_.free_bytes = 10 * kGib;
  bounds_.others_ready_bytes = 4 * kGib;
  needs_ = {Need(1, 100 * kGib)};
  EXPECT_EQ(Plan().make, (std::vector{Need(1, 3 * kGib)})) << "then 7 are ready and 7 are free";
  bounds_.others_ready_bytes = 10 * kGib;
  EXPECT_TRUE(Plan().make.empty());
  bounds_.others_ready_bytes = UINT64_MAX;
  arenas_ = {Ready(1, kGib)};
  EXPECT_EQ(Plan().free, std::vector{Key(1)});
  EXPECT_TRUE(Plan().make.empty());
}

TEST_F(ReadyPlanTest, CountsWhatIsAllocated) {
  bounds_.free_bytes = 10 * kGib;
  arenas_ = {Ready(1, 100 * kGib)};
  arenas_[0].allocated_bytes = 2 * kGib;
  needs_ = {Need(1, kGib), Need(2, 100 * kGib)};
  EXPECT_EQ(Plan().make, (std::vector{Need(2, 4 * kGib)}));
}

TEST_F(ReadyPlanTest, GivesBackWhatNoProgramNeeds) {
  needs_ = {Need(1, kGib), Need(3, kGib), Need(4, kGib)};
  arenas_ = {Ready(1, kGib), Ready(2, kGib), Ready(3, kGib),
             Kept(3, kGib),  Ready(4, kGib), File(4, kGib)};
  EXPECT_EQ(Plan().free, (std::vector{Key(2), Key(3), Key(4)}));
  bounds_.complete = false;
  EXPECT_EQ(Plan().free, (std::vector{Key(3), Key(4)})) << "2 may belong to a program that is busy";
}

TEST_F(ReadyPlanTest, GivesBackWhenMemoryBecomesScarce) {
  needs_ = {Need(1, 2 * kGib), Need(2, 2 * kGib)};
  arenas_ = {Ready(1, 2 * kGib), Ready(2, 2 * kGib)};
  bounds_.free_bytes = 2 * kGib;
  const ReadyPlan plan = Plan();
  EXPECT_EQ(plan.free, std::vector{Key(2)});
  EXPECT_EQ(plan.make, (std::vector{Need(2, kGib)})) << "3 ready and 3 free";
  bounds_ = {.most_bytes = 0, .free_bytes = 100 * kGib};
  EXPECT_EQ(Plan().free, (std::vector{Key(2), Key(1)}));
  EXPECT_TRUE(Plan().make.empty());
}

TEST_F(ReadyPlanTest, LeavesFilesInUseAlone) {
  arenas_ = {Ready(1, kGib)};
  arenas_[0].in_use = true;
  EXPECT_TRUE(Plan().free.empty());
}

}  // namespace
}  // namespace stasis::dataplane
