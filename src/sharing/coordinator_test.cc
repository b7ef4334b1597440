#include "sharing/coordinator.h"

#include <gtest/gtest.h>

namespace stasis::sharing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = Action::Kind;

// One machine with a GPU of 80 bytes and host memory of 1000, surveyed on demand.
class CoordinatorTest : public ::testing::Test {
 protected:
  Facts& Add(const std::string& id, uint64_t data, State state = State::kAwake,
             uint64_t contexts = 0) {
    Facts facts;
    facts.state = state;
    facts.memory["gpu0"] = {data, contexts, 0};
    programs_[id] = facts;
    return programs_[id];
  }

  uint64_t Occupied(const std::string& gpu) const {
    uint64_t bytes = 0;
    for (const auto& [id, facts] : programs_) {
      auto memory = facts.memory.find(gpu);
      if (memory == facts.memory.end() || facts.state == State::kSuspended) continue;
      bytes += memory->second.contexts;
      if (facts.state == State::kAwake) bytes += memory->second.data;
    }
    return bytes;
  }

  // "old" has the GPU, on which "new" does not fit beside it, and has been idle for a while.
  void AddOneOfTwo() {
    Add("old", 60);
    Add("new", 60, State::kSuspended);
    Look();
    Pass(seconds(10));
  }

  void Look() {
    Survey survey;
    survey.began = now_;
    for (const auto& [gpu, bytes] : gpus_) {
      survey.gpus[gpu] = {bytes, bytes - std::min(bytes, Occupied(gpu))};
    }
    survey.host_free_bytes = 1000;
    for (const auto& [id, facts] : programs_) {
      const bool known = busy_ != id && silent_ != id;
      survey.programs[id] = known ? std::optional(facts) : std::nullopt;
    }
    if (!silent_.empty()) survey.silent = {silent_};
    coordinator_.Apply(survey, now_);
  }

  // Surveys if a decision needs it.
  Plan Next() {
    Plan plan = coordinator_.Next(now_);
    if (!plan.survey) return plan;
    Look();
    Plan second = coordinator_.Next(now_);
    EXPECT_FALSE(second.survey);
    second.answers.insert(second.answers.begin(), plan.answers.begin(), plan.answers.end());
    second.released.insert(second.released.begin(), plan.released.begin(), plan.released.end());
    return second;
  }

  std::string Swaps(const Plan& plan) {
    std::string text;
    for (const Plan::Swap& swap : plan.swaps) {
      const char* name = swap.kind == Kind::kResume        ? "resume "
                         : swap.kind == Kind::kSuspendData ? "suspend "
                                                           : "suspend fully ";
      text += (text.empty() ? "" : ", ") + (name + swap.id);
    }
    return text;
  }

  // Time passes, and with it all programs become idle unless they are used.
  void Pass(Time time) {
    now_ += time;
    coordinator_.TimeHasCome(now_);
  }

  void End(const std::string& id, State state, Time took = seconds(1)) {
    now_ += took;
    programs_[id].state = state;
    SwapResult result;
    result.ok = true;
    result.took = took;
    coordinator_.SwapEnded(id, result, now_);
  }

  void Fail(const std::string& id, const std::string& problem, bool busy = false) {
    SwapResult result;
    result.busy = busy;
    result.problem = problem;
    coordinator_.SwapEnded(id, result, now_);
  }

  void AtGate(const std::string& id) { coordinator_.SetWant(id, 1, {true, {}}, now_); }
  void Ask(const std::string& id, uint64_t bytes, uint64_t number = 1) {
    coordinator_.SetWant(id, 1, {false, Allocation{number, bytes, "gpu0"}}, now_);
  }

  View Show(const std::string& id) {
    for (const View& view : coordinator_.Show()) {
      if (view.id == id) return view;
    }
    ADD_FAILURE() << "there is no program " << id;
    return {};
  }

  Time now_ = seconds(1000);
  Coordinator coordinator_{Limits{}};
  std::map<std::string, uint64_t> gpus_ = {{"gpu0", 80}};
  std::map<std::string, Facts> programs_;
  std::string busy_, silent_;
};

TEST_F(CoordinatorTest, AProgramThatWantsTheGpuGetsIt) {
  Add("old", 60);
  Add("new", 60, State::kSuspended);
  Look();
  EXPECT_EQ(Swaps(Next()), "");
  Pass(seconds(10));
  AtGate("new");
  Plan plan = Next();
  ASSERT_EQ(Swaps(plan), "suspend old");
  EXPECT_EQ(plan.swaps[0].for_id, "new");
  EXPECT_EQ(Swaps(Next()), "") << "the suspend is in progress";
  End("old", State::kContextKept);
  EXPECT_EQ(Swaps(Next()), "resume new");
  End("new", State::kAwake);
  EXPECT_EQ(Swaps(Next()), "");
  EXPECT_FALSE(Show("new").wanted_since);
  EXPECT_EQ(Show("old").saved.swaps, 1u);
  EXPECT_EQ(Show("old").saved.lost, Time(seconds(1)));
}

TEST_F(CoordinatorTest, ADecisionIsMadeFromASurveyAfterTheLastEvent) {
  Add("old", 10);
  Add("new", 60, State::kSuspended);
  Look();
  Pass(seconds(10));
  AtGate("new");
  EXPECT_TRUE(coordinator_.Next(now_).survey);
  programs_["old"].memory["gpu0"].data = 70;  // it has grown since
  EXPECT_EQ(Swaps(Next()), "suspend old");
}

TEST_F(CoordinatorTest, AnAllocationIsAnsweredWhenRoomWasMade) {
  Add("idle", 50);
  Add("asks", 30);
  Look();
  Pass(seconds(10));
  coordinator_.SetUsed("asks", now_);
  Ask("asks", 20, 7);
  Plan plan = Next();
  ASSERT_EQ(Swaps(plan), "suspend idle");
  EXPECT_TRUE(plan.answers.empty());
  End("idle", State::kContextKept);
  plan = Next();
  ASSERT_EQ(plan.answers.size(), 1u);
  EXPECT_EQ(plan.answers[0].number, 7u);
  EXPECT_TRUE(plan.answers[0].try_again);
}

TEST_F(CoordinatorTest, MemoryThatWasGrantedIsNotGivenToAnother) {
  Add("asks", 30);
  Add("waits", 40, State::kSuspended);
  Look();
  Ask("asks", 20);
  ASSERT_EQ(Next().answers.size(), 1u);
  AtGate("waits");
  EXPECT_EQ(Swaps(Next()), "") << "its turn has just begun";
  Pass(milliseconds(300));
  Look();  // the grant was not used
  EXPECT_EQ(Swaps(Next()), "resume waits");
}

TEST_F(CoordinatorTest, AnAllocationThatCannotBeServedFails) {
  Add("pinned", 50);
  Add("asks", 10);
  Look();
  ASSERT_TRUE(coordinator_.Pin("pinned", true));
  Pass(seconds(10));
  Ask("asks", 30);
  Plan plan = Next();
  ASSERT_EQ(plan.answers.size(), 1u);
  EXPECT_FALSE(plan.answers[0].try_again);
  EXPECT_NE(Show("asks").problem, "");
}

TEST_F(CoordinatorTest, AnAllocationWaitsForTheLongestTime) {
  Add("busy", 50);
  Add("asks", 10);
  Look();
  Pass(seconds(10));
  coordinator_.HandBegan(1, "busy", Hand::kOther, now_);
  Ask("asks", 30);
  Plan plan = Next();
  EXPECT_TRUE(plan.answers.empty()) << "the operation on the other program will end";
  ASSERT_TRUE(plan.look_again);
  Pass(seconds(60));
  plan = Next();
  ASSERT_EQ(plan.answers.size(), 1u);
  EXPECT_FALSE(plan.answers[0].try_again);
}

// The driver has no room although it counts enough free bytes. Between two attempts nothing waits.
TEST_F(CoordinatorTest, AnAllocationThatFailsInSpiteOfRoomEndsAtLast) {
  Add("new", 10);
  Look();
  bool refused = false;
  for (uint32_t attempts = 0; attempts < 10 && !refused; ++attempts) {
    coordinator_.SetWant("new", 1, {false, Allocation{attempts + 1, 20, "gpu0", attempts}}, now_);
    const Plan plan = Next();
    ASSERT_EQ(plan.answers.size(), 1u) << attempts;
    refused = !plan.answers[0].try_again;
    coordinator_.SetWant("new", 1, {}, now_);
    now_ += milliseconds(1);
  }
  EXPECT_TRUE(refused);
}

TEST_F(CoordinatorTest, AProgramWhoseSwapFailedIsLeftAloneForALongerAndLongerTime) {
  AddOneOfTwo();
  AtGate("new");
  Time pause{0};
  for (int failure = 0; failure < 3; ++failure) {
    ASSERT_EQ(Swaps(Next()), "suspend old") << failure;
    Fail("old", "its gate does not close");
    const Plan plan = Next();
    ASSERT_EQ(Swaps(plan), "");
    ASSERT_TRUE(plan.look_again);
    EXPECT_GE(*plan.look_again - now_, std::max(2 * pause, Time(seconds(1))));
    pause = *plan.look_again - now_;
    Pass(pause);
  }
  EXPECT_EQ(Show("old").problem, "its gate does not close");
  EXPECT_EQ(Show("old").failures, 3u);
  EXPECT_EQ(Show("old").facts.state, State::kAwake);
}

TEST_F(CoordinatorTest, AFailedSwapDoesNotMakeAnAllocationHopeless) {
  Add("old", 60);
  Add("asks", 10);
  Look();
  Pass(seconds(10));
  coordinator_.SetUsed("asks", now_);
  Ask("asks", 30);
  ASSERT_EQ(Swaps(Next()), "suspend old");
  Fail("old", "no");
  EXPECT_TRUE(Next().answers.empty());
}

TEST_F(CoordinatorTest, AProgramThatCannotLeaveStays) {
  Add("old", 60).obstacle = "managed memory";
  Add("new", 60, State::kSuspended);
  Look();
  Pass(seconds(10));
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  EXPECT_NE(Show("new").problem, "") << "nothing can make room for it";
}

TEST_F(CoordinatorTest, AProgramThatEndsAtTheGateIsForgotten) {
  AddOneOfTwo();
  AtGate("new");
  ASSERT_EQ(Swaps(Next()), "suspend old");
  programs_.erase("new");
  Look();
  EXPECT_FALSE(coordinator_.AnyWaits());
  End("old", State::kContextKept);
  EXPECT_EQ(Swaps(Next()), "");
  AtGate("old");
  EXPECT_EQ(Swaps(Next()), "resume old");
  programs_.erase("old");  // it ends while it is resumed
  now_ += seconds(1);
  Look();
  Fail("old", "it has ended");
  EXPECT_EQ(Swaps(Next()), "");
}

TEST_F(CoordinatorTest, AWatcherThatDisconnectsWaitsForNothing) {
  Add("asks", 10);
  Add("other", 60);
  Look();
  Ask("asks", 30, 5);
  coordinator_.Disconnected("asks", 1);
  EXPECT_FALSE(coordinator_.AnyWaits());
  Pass(seconds(100));
  EXPECT_TRUE(Next().answers.empty());
  Ask("asks", 30, 6);  // it has come back
  EXPECT_TRUE(coordinator_.AnyWaits());
}

TEST_F(CoordinatorTest, ASuspendByHandWins) {
  Add("new", 60);
  Look();
  coordinator_.HandBegan(1, "new", Hand::kSuspend, now_);
  EXPECT_EQ(Next().released, std::vector<uint64_t>{1});
  programs_["new"].state = State::kSuspended;
  coordinator_.HandEnded(1, true, now_);
  AtGate("new");
  Pass(seconds(100));
  EXPECT_EQ(Swaps(Next()), "") << "only a user resumes it";
  coordinator_.HandBegan(2, "new", Hand::kResume, now_);
  EXPECT_EQ(Next().released, std::vector<uint64_t>{2});
  programs_["new"].state = State::kAwake;
  coordinator_.HandEnded(2, true, now_);
  Look();
  EXPECT_EQ(Show("new").facts.state, State::kAwake);
  EXPECT_FALSE(Show("new").saved.suspended_by_hand);
}

TEST_F(CoordinatorTest, AResumeByHandGetsRoomAtOnce) {
  AddOneOfTwo();
  coordinator_.SetUsed("old", now_);
  coordinator_.HandBegan(1, "new", Hand::kResume, now_);
  Plan plan = Next();
  EXPECT_EQ(Swaps(plan), "suspend old") << "it waits for no turn to end";
  EXPECT_TRUE(plan.released.empty());
  End("old", State::kContextKept);
  plan = Next();
  EXPECT_EQ(Swaps(plan), "");
  EXPECT_EQ(plan.released, std::vector<uint64_t>{1});
}

TEST_F(CoordinatorTest, AnOperationByHandWaitsForTheSwapInProgress) {
  AddOneOfTwo();
  AtGate("new");
  ASSERT_EQ(Swaps(Next()), "suspend old");
  coordinator_.HandBegan(1, "old", Hand::kOther, now_);
  EXPECT_TRUE(Next().released.empty());
  End("old", State::kContextKept);
  Plan plan = Next();
  EXPECT_EQ(plan.released, std::vector<uint64_t>{1});
  AtGate("old");
  EXPECT_EQ(Swaps(Next()), "") << "a dump works on it";
  coordinator_.HandEnded(1, true, now_);
}

TEST_F(CoordinatorTest, ADumpKeepsAProgramOnTheGpu) {
  AddOneOfTwo();
  coordinator_.HandBegan(1, "old", Hand::kOther, now_);
  ASSERT_EQ(Next().released.size(), 1u);
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  coordinator_.HandEnded(1, true, now_);
  EXPECT_EQ(Swaps(Next()), "suspend old");
}

TEST_F(CoordinatorTest, TheNextDaemonGoesOn) {
  coordinator_.Restore("asleep", {true, true, 7, seconds(3)});
  Add("asleep", 60, State::kSuspended);
  Add("kept", 30, State::kContextKept, 5);
  Look();
  EXPECT_EQ(Show("asleep").saved, (Saved{true, true, 7, seconds(3)}));
  EXPECT_EQ(Show("kept").facts.state, State::kContextKept);
  AtGate("asleep");
  AtGate("kept");
  EXPECT_EQ(Swaps(Next()), "resume kept") << "the other was suspended by hand";
}

// The daemon may start while a worker of the one before it swaps a program.
TEST_F(CoordinatorTest, NothingIsRefusedWhileTheSizeOfAGpuIsNotKnown) {
  Add("swapped", 60);
  Add("asks", 10);
  busy_ = "swapped";
  Look();
  Ask("asks", 50);
  EXPECT_TRUE(Next().answers.empty());
  EXPECT_EQ(Show("asks").problem, "");
  busy_.clear();
  Pass(seconds(10));
  EXPECT_EQ(Swaps(Next()), "suspend swapped");
}

TEST_F(CoordinatorTest, AProgramThatStaysBusyKeepsRequestsFromBeingRefusedOnlyForAWhile) {
  Add("busy", 20);
  Add("asks", 10);
  busy_ = "busy";
  Look();
  Pass(seconds(9));
  Ask("asks", 90);
  EXPECT_TRUE(Next().answers.empty());
  Pass(seconds(6));
  const Plan plan = Next();
  ASSERT_EQ(plan.answers.size(), 1U);
  EXPECT_FALSE(plan.answers[0].try_again);
}

// Several programs may be busy when the daemon starts, and one of them stay so.
TEST_F(CoordinatorTest, MemoryIsFoundBesideAProgramThatStaysBusy) {
  Add("busy", 20);
  Add("asks", 10);
  gpus_["gpu0"] = 40;
  busy_ = "busy";
  Look();
  gpus_["gpu0"] = 80;
  Pass(seconds(15));
  Ask("asks", 40);
  const Plan plan = Next();
  ASSERT_EQ(plan.answers.size(), 1U);
  EXPECT_TRUE(plan.answers[0].try_again);
}

TEST_F(CoordinatorTest, AProgramOfWhichNothingIsKnownIsLeftAlone) {
  Add("old", 60);
  Add("new", 60, State::kSuspended);
  busy_ = "old";  // an earlier daemon's operation works on it
  Look();
  Pass(seconds(10));
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  busy_.clear();
  Look();
  Pass(seconds(10));
  EXPECT_EQ(Swaps(Next()), "suspend old");
}

TEST_F(CoordinatorTest, TheEndOfAnOperationOfAnotherProcessIsFound) {
  Add("old", 60);
  busy_ = "old";
  Look();
  Plan plan = coordinator_.Next(now_);
  EXPECT_FALSE(plan.survey);
  ASSERT_TRUE(plan.look_again);
  now_ = *plan.look_again;
  EXPECT_TRUE(coordinator_.Next(now_).survey);
  busy_.clear();
  Look();
  plan = coordinator_.Next(now_);
  EXPECT_FALSE(plan.survey || plan.look_again) << "there is nothing to find any more";
}

TEST_F(CoordinatorTest, AProgramThatDoesNotAnswerStaysAndOthersAreServed) {
  Add("stopped", 30);
  Add("old", 30);
  Add("new", 40, State::kSuspended);
  Look();
  Pass(seconds(10));
  coordinator_.SetUsed("old", now_);  // "stopped" has been idle for longer
  Pass(seconds(10));
  silent_ = "stopped";
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "suspend old");
}

TEST_F(CoordinatorTest, MemoryIsFoundBesideAProgramThatDoesNotAnswer) {
  Add("stopped", 20);
  Add("new", 50, State::kSuspended);
  gpus_["gpu0"] = 60;  // another program, which does not share, has the rest
  Look();
  silent_ = "stopped";
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  gpus_["gpu0"] = 80;
  Pass(seconds(10));
  EXPECT_EQ(Swaps(Next()), "resume new");
}

// A user could otherwise keep the daemon from noticing changes of the GPUs.
TEST_F(CoordinatorTest, MemoryIsFoundBesideAProgramThatHasNeverAnswered) {
  Add("stopped", 20);
  Add("new", 50, State::kSuspended);
  gpus_["gpu0"] = 60;
  silent_ = "stopped";
  Look();
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  gpus_["gpu0"] = 80;
  Pass(seconds(10));
  EXPECT_EQ(Swaps(Next()), "resume new");
}

TEST_F(CoordinatorTest, NobodyWaitsForAGpuThatHasFailed) {
  gpus_["gpu1"] = 80;
  Add("a", 10);
  programs_["a"].memory["gpu1"] = {40, 0, 0};
  Look();
  gpus_.erase("gpu1");
  Pass(seconds(10));
  coordinator_.SetWant("a", 1, {false, Allocation{3, 10, "gpu1"}}, now_);
  Plan plan = Next();
  ASSERT_EQ(plan.answers.size(), 1u);
  EXPECT_FALSE(plan.answers[0].try_again);
}

TEST_F(CoordinatorTest, ProgramsOverSeveralGpusAreSwappedAsOne) {
  gpus_["gpu1"] = 80;
  for (const char* id : {"a", "b"}) {
    Add(id, 60, id[0] == 'a' ? State::kAwake : State::kSuspended).memory["gpu1"] = {60, 0, 0};
  }
  Look();
  Pass(seconds(10));
  AtGate("b");
  EXPECT_EQ(Swaps(Next()), "suspend a");
  End("a", State::kContextKept);
  EXPECT_EQ(Swaps(Next()), "resume b");
}

TEST_F(CoordinatorTest, RoomIsLeftForTheContextOfTheMover) {
  Add("old", 30, State::kAwake, 10);
  Add("new", 25, State::kSuspended, 10);
  Look();
  Pass(seconds(10));
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "suspend old") << "30 + 10 + 25 + 10 leave no room for 10 more";
}

TEST_F(CoordinatorTest, HostMemoryIsAskedForBeforeAProgramStarts) {
  Limits limits;
  limits.host_bytes = 100;
  coordinator_ = Coordinator(limits);
  EXPECT_TRUE(coordinator_.HasHostRoom(1)) << "nothing is known yet";
  Add("a", 70);
  Look();
  EXPECT_TRUE(coordinator_.HasHostRoom(30));
  EXPECT_FALSE(coordinator_.HasHostRoom(31));
  EXPECT_FALSE(coordinator_.HasHostRoom(UINT64_MAX));
}

TEST_F(CoordinatorTest, DataGoesToFilesWhenHostMemoryIsUsedUp) {
  Limits limits;
  limits.host_bytes = 50;
  coordinator_ = Coordinator(limits);
  Add("old", 60).can_spill = true;
  Add("new", 60, State::kSuspended);
  Survey survey;
  survey.began = now_;
  survey.gpus["gpu0"] = {80, 20};
  survey.spill_free_bytes = 1000;
  for (const auto& [id, facts] : programs_) survey.programs[id] = facts;
  coordinator_.Apply(survey, now_);
  now_ += seconds(10);
  AtGate("new");
  survey.began = now_;
  coordinator_.Apply(survey, now_);
  Plan plan = coordinator_.Next(now_);
  ASSERT_EQ(Swaps(plan), "suspend old");
  EXPECT_TRUE(plan.swaps[0].spill);
}

// Data in files takes no host memory, and the files that it fills are not missing from the bound.
TEST_F(CoordinatorTest, DataInFilesUsesUpOnlyFiles) {
  Limits limits;
  limits.host_bytes = 50;
  coordinator_ = Coordinator(limits);
  Add("spilled", 60, State::kSuspended).can_spill = true;
  programs_["spilled"].spilled_bytes = 60;
  Add("old", 40);
  Add("new", 40, State::kSuspended);
  Survey survey;
  survey.gpus["gpu0"] = {80, 40};
  survey.spill_free_bytes = 40;
  for (const auto& [id, facts] : programs_) survey.programs[id] = facts;
  coordinator_.Apply(survey, now_);
  EXPECT_TRUE(coordinator_.HasHostRoom(10)) << "50 of memory and 100 of files for 140 + 10";
  EXPECT_FALSE(coordinator_.HasHostRoom(11));
  now_ += seconds(10);
  AtGate("spilled");
  survey.began = now_;
  coordinator_.Apply(survey, now_);
  // Only 40 of the 50 are used, by "new".
  EXPECT_EQ(Swaps(coordinator_.Next(now_)), "") << "old cannot spill";
  Add("new", 5, State::kSuspended);
  for (const auto& [id, facts] : programs_) survey.programs[id] = facts;
  now_ += seconds(1);
  survey.began = now_;
  coordinator_.Apply(survey, now_);
  EXPECT_EQ(Swaps(coordinator_.Next(now_)), "suspend old");
}

// Another user has a folder for such files, which is of no use to this program.
TEST_F(CoordinatorTest, AProgramWithoutFilesStaysWhenHostMemoryIsUsedUp) {
  Limits limits;
  limits.host_bytes = 50;
  coordinator_ = Coordinator(limits);
  Add("old", 60);
  Add("new", 60, State::kSuspended);
  Survey survey;
  survey.gpus["gpu0"] = {80, 20};
  survey.spill_free_bytes = 1000;
  for (const auto& [id, facts] : programs_) survey.programs[id] = facts;
  coordinator_.Apply(survey, now_);
  now_ += seconds(10);
  AtGate("new");
  survey.began = now_;
  coordinator_.Apply(survey, now_);
  EXPECT_EQ(Swaps(coordinator_.Next(now_)), "");
}

TEST_F(CoordinatorTest, FalseSizesDoNotMakeHostMemoryLargerThanItIs) {
  Add("false", 1000000, State::kSuspended);
  Survey survey;
  survey.began = now_;
  survey.gpus["gpu0"] = {80, 80};
  survey.host_free_bytes = 100;
  survey.host_total_bytes = 1000;
  survey.programs["false"] = programs_["false"];
  coordinator_.Apply(survey, now_);
  EXPECT_FALSE(coordinator_.HasHostRoom(1));
}

// Nothing reports that a program that does not share GPUs has ended.
TEST_F(CoordinatorTest, MemoryThatOthersHaveFreedIsFound) {
  Add("new", 60, State::kSuspended);
  gpus_["gpu0"] = 20;
  Look();
  AtGate("new");
  EXPECT_EQ(Swaps(Next()), "");
  const Plan plan = coordinator_.Next(now_);
  ASSERT_TRUE(plan.look_again);
  gpus_["gpu0"] = 80;
  now_ = *plan.look_again;
  EXPECT_EQ(Swaps(Next()), "resume new");
}

TEST_F(CoordinatorTest, ATimeThatHasPassedIsNotAwaited) {
  AddOneOfTwo();
  AtGate("new");
  ASSERT_EQ(Swaps(Next()), "suspend old");
  coordinator_.HandBegan(1, "old", Hand::kResume, now_);
  now_ += Limits{}.max_wait + seconds(1);
  const Plan plan = Next();
  EXPECT_TRUE(plan.released.empty()) << "the swap is still in progress";
  EXPECT_GT(plan.look_again.value_or(Time::max()), now_);
}

}  // namespace
}  // namespace stasis::sharing
