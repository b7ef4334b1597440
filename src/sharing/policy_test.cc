#include "sharing/policy.h"

#include <gtest/gtest.h>

namespace stasis::sharing {
namespace {

using std::chrono::seconds;
using Kind = Action::Kind;
using Reason = Refusal::Reason;

// Sizes are in bytes of an invented GPU of 80; `now` is 1000 s.
Table MakeTable(size_t gpus = 1) {
  Table table;
  table.now = seconds(1000);
  table.gpu_bytes.assign(gpus, 80);
  table.host_bytes = 1000;
  return table;
}

// A program that has used the GPU for a long time without a pause.
Program& AddAwake(Table* table, const std::string& id, uint64_t data, uint64_t contexts = 0) {
  Program program;
  program.id = id;
  program.used_last = table->now;
  program.swap_cost = seconds(1);
  program.memory.resize(table->gpu_bytes.size());
  program.memory[0] = {data, contexts, 0};
  table->programs.push_back(program);
  return table->programs.back();
}

Program& AddAsleep(Table* table, const std::string& id, uint64_t data, uint64_t contexts = 0) {
  Program& program = AddAwake(table, id, data, contexts);
  program.state = program.target = State::kSuspended;
  program.used_last = program.turn_began = Time(0);
  return program;
}

Program& AddWaiting(Table* table, const std::string& id, uint64_t data, int since_s = 990,
                    uint64_t contexts = 0) {
  Program& program = AddAsleep(table, id, data, contexts);
  program.wanted_since = seconds(since_s);
  return program;
}

// As in "suspend a, resume b".
std::string Actions(const Table& table) {
  static const char* const kNames[] = {"suspend ", "suspend fully ", "resume ", "grant "};
  std::string text;
  for (const Action& action : Decide(table).actions) {
    text += (text.empty() ? "" : ", ") + (kNames[int(action.kind)] + action.id);
  }
  return text;
}

std::string Refusals(const Table& table) {
  std::string text;
  for (const Refusal& refusal : Decide(table).refusals) {
    text += refusal.id + (refusal.reason == Reason::kGpuMemory ? " gpu" : " host");
  }
  return text;
}

TEST(PolicyTest, NothingHappensWhenNobodyWantsTheGpu) {
  Table table = MakeTable();
  AddAwake(&table, "busy", 40).used_last = Time(0);
  AddAsleep(&table, "asleep", 60);
  EXPECT_EQ(Actions(table), "");
  EXPECT_FALSE(Decide(table).look_again);
}

TEST(PolicyTest, AProgramReturnsToFreeMemory) {
  Table table = MakeTable();
  AddAwake(&table, "busy", 40);
  AddWaiting(&table, "waiting", 30, 990, 10);
  EXPECT_EQ(Actions(table), "resume waiting");
  table.programs[1].memory[0].contexts = 11;
  EXPECT_EQ(Actions(table), "suspend busy") << "its contexts do not fit";
}

TEST(PolicyTest, TheLongestIdleLeavesFirst) {
  Table table = MakeTable();
  AddAwake(&table, "a", 40).used_last = seconds(900);
  AddAwake(&table, "b", 40).used_last = seconds(800);
  AddWaiting(&table, "waiting", 40);
  EXPECT_EQ(Actions(table), "suspend b");
  EXPECT_EQ(Decide(table).actions[0].for_id, "waiting");
  table.programs[0].used_last = table.now;
  table.programs[1].used_last = table.now;
  table.programs[1].share_class = Class::kBatch;
  EXPECT_EQ(Actions(table), "suspend b") << "batch programs leave before interactive ones";
}

TEST(PolicyTest, ABusyProgramKeepsItsTurn) {
  Table table = MakeTable();
  Program& busy = AddAwake(&table, "busy", 60);
  busy.turn_began = seconds(995);
  AddWaiting(&table, "waiting", 60);
  EXPECT_EQ(Actions(table), "");
  EXPECT_EQ(Decide(table).look_again, Time(seconds(1001))) << "it may be idle then";
  table.now = table.programs[0].used_last = seconds(1005);
  EXPECT_EQ(Actions(table), "suspend busy");
}

TEST(PolicyTest, ATurnIsLongForAWaitingProgramThatIsSlowToSwap) {
  Table table = MakeTable();
  AddAwake(&table, "busy", 60).turn_began = seconds(980);
  AddWaiting(&table, "waiting", 60).swap_cost = seconds(3);
  EXPECT_EQ(Actions(table), "");
  table.programs[0].turn_began = seconds(970);
  EXPECT_EQ(Actions(table), "suspend busy");
}

TEST(PolicyTest, BatchWaitsForInteractiveProgramsUntilItsPatienceEnds) {
  Table table = MakeTable();
  AddAwake(&table, "busy", 60);
  AddWaiting(&table, "batch", 60, 960).share_class = Class::kBatch;
  EXPECT_EQ(Actions(table), "") << "it takes no turns with an interactive program yet";
  AddWaiting(&table, "interactive", 60, 999);
  EXPECT_EQ(Decide(table).actions[0].for_id, "interactive");
  table.programs[1].wanted_since = seconds(930);
  EXPECT_EQ(Decide(table).actions[0].for_id, "batch");
}

TEST(PolicyTest, ContextsLeaveOnlyIfTheyMust) {
  Table table = MakeTable();
  AddAwake(&table, "idle", 60, 10).used_last = Time(0);
  AddWaiting(&table, "waiting", 70);
  EXPECT_EQ(Actions(table), "suspend idle");
  table.programs[1].memory[0].data = 71;
  EXPECT_EQ(Actions(table), "suspend fully idle");
  Program& kept = AddAsleep(&table, "kept", 60, 5);
  kept.state = kept.target = State::kContextKept;
  table.programs[1].memory[0].data = 66;
  EXPECT_EQ(Actions(table), "suspend idle, suspend fully kept");
}

TEST(PolicyTest, NoMoreLeaveThanMust) {
  Table table = MakeTable();
  AddAwake(&table, "small", 10).used_last = seconds(1);
  AddAwake(&table, "large", 70).used_last = seconds(2);
  AddWaiting(&table, "waiting", 60);
  EXPECT_EQ(Actions(table), "suspend large");
}

TEST(PolicyTest, AProgramOverSeveralGpusTakesAllOrNone) {
  Table table = MakeTable(2);
  AddAwake(&table, "idle", 60).used_last = Time(0);
  Program& busy = AddAwake(&table, "busy", 0);
  busy.memory[1] = {60, 0, 0};
  busy.turn_began = seconds(995);
  AddWaiting(&table, "both", 60).memory[1] = {60, 0, 0};
  EXPECT_EQ(Actions(table), "") << "the second GPU is not to be had yet";
  AddWaiting(&table, "small", 20, 999);
  EXPECT_EQ(Actions(table), "resume small") << "this does not delay the other one";
  table.programs[3].memory[0].data = 21;
  EXPECT_EQ(Actions(table), "") << "this would";
  table.programs[1].turn_began = seconds(1);
  EXPECT_EQ(Actions(table), "suspend idle, suspend busy");
}

TEST(PolicyTest, AnOperationInProgressIsAwaited) {
  Table table = MakeTable();
  AddAwake(&table, "leaving", 60).target = State::kContextKept;
  AddAwake(&table, "idle", 10).used_last = Time(0);
  AddWaiting(&table, "waiting", 60);
  EXPECT_EQ(Actions(table), "");
  table.programs[0].state = State::kContextKept;
  EXPECT_EQ(Actions(table), "resume waiting");
}

// A program that wants the GPU again does not take back the room that it has just made.
TEST(PolicyTest, RoomThatWasMadeIsKept) {
  Table table = MakeTable();
  AddWaiting(&table, "left", 60, 999);
  Program& batch = AddWaiting(&table, "batch", 60, 998);
  batch.share_class = Class::kBatch;
  EXPECT_EQ(Actions(table), "resume left");
  table.programs[1].promised = true;
  EXPECT_EQ(Actions(table), "resume batch");
}

TEST(PolicyTest, AWaitingAllocationIsGrantedRoom) {
  Table table = MakeTable();
  Program& asking = AddAwake(&table, "asking", 40);
  asking.memory[0].asked = 30;
  asking.wanted_since = seconds(999);
  EXPECT_EQ(Actions(table), "grant asking");
  AddAwake(&table, "idle", 20).used_last = Time(0);
  EXPECT_EQ(Actions(table), "suspend idle");
  table.programs[0].granted = true;
  table.programs[1].state = table.programs[1].target = State::kSuspended;
  EXPECT_EQ(Actions(table), "") << "the program has yet to take it";
  AddWaiting(&table, "waiting", 20);
  EXPECT_EQ(Actions(table), "") << "the granted memory is not free";
}

TEST(PolicyTest, APinnedProgramStays) {
  Table table = MakeTable();
  AddAwake(&table, "pinned", 60).pinned = true;
  table.programs[0].used_last = Time(0);
  AddWaiting(&table, "waiting", 21);
  EXPECT_EQ(Actions(table), "");
  EXPECT_EQ(Refusals(table), "waiting gpu");
  table.programs[1].memory[0].data = 20;
  EXPECT_EQ(Actions(table), "resume waiting");
}

TEST(PolicyTest, WhatIsDoneByHandWins) {
  Table table = MakeTable();
  AddWaiting(&table, "away", 60).by_hand = ByHand::kSuspend;
  EXPECT_EQ(Actions(table), "");
  AddAwake(&table, "busy", 60).turn_began = table.now;
  AddWaiting(&table, "first", 60, 1);
  EXPECT_EQ(Actions(table), "");
  AddWaiting(&table, "called", 60, 999).by_hand = ByHand::kResume;
  ASSERT_EQ(Actions(table), "suspend busy");
  EXPECT_EQ(Decide(table).actions[0].for_id, "called");
}

TEST(PolicyTest, AResumeByHandEndsNoTurnOfAnotherUser) {
  Table table = MakeTable();
  AddAwake(&table, "busy", 60).turn_began = table.now;
  AddWaiting(&table, "first", 60, 1);
  Program& called = AddWaiting(&table, "called", 60, 999);
  called.by_hand = ByHand::kResume;
  called.user = 1000;
  EXPECT_EQ(Actions(table), "");
  table.now = table.programs[0].used_last = seconds(1010);
  ASSERT_EQ(Actions(table), "suspend busy") << "its turn is over";
  EXPECT_EQ(Decide(table).actions[0].for_id, "called");
}

TEST(PolicyTest, WhatCannotLeaveForLackOfHostMemoryStays) {
  Table table = MakeTable();
  AddAwake(&table, "idle", 60).used_last = Time(0);
  AddWaiting(&table, "waiting", 60);
  table.host_bytes = 119;
  EXPECT_EQ(Actions(table), "");
  EXPECT_EQ(Refusals(table), "waiting host");
  EXPECT_FALSE(HostHasRoom(table, 0));
  table.host_bytes = 120;
  EXPECT_EQ(Actions(table), "suspend idle");
  EXPECT_TRUE(HostHasRoom(table, 0));
  EXPECT_FALSE(HostHasRoom(table, 1));
}

// A GPU of 80 keeps at least 80 - 30 - 20 of the data: room is made for one, and at most one more
// than necessary leaves.
TEST(PolicyTest, NotAllDataCanBeInHostMemoryAtOnce) {
  Table table = MakeTable();
  AddAwake(&table, "a", 30);
  AddAwake(&table, "b", 20);
  AddAwake(&table, "c", 20);
  AddAsleep(&table, "d", 20);
  EXPECT_EQ(HostNeed(table, 0), 60u);
  EXPECT_EQ(HostNeed(table, 25), 25u + 65u) << "this one may be the one that leaves";
  EXPECT_EQ(HostNeed(table, UINT64_MAX), UINT64_MAX);
  table.programs[0].memory[0].contexts = 4;
  EXPECT_EQ(HostNeed(table, 0), 64u);
  for (size_t i : {0, 1, 2}) table.programs[i].state = table.programs[i].target = State::kSuspended;
  EXPECT_EQ(HostNeed(table, 0), 90u) << "by hand";
}

TEST(PolicyTest, AllDataOfProgramsOnSeveralGpusMayLeave) {
  Table table = MakeTable(2);
  AddAwake(&table, "a", 10);
  AddAwake(&table, "b", 10);
  EXPECT_EQ(HostNeed(table, 0), 0u);
  table.programs[0].memory[1].data = 5;
  EXPECT_EQ(HostNeed(table, 0), 25u);
  table.programs[0].memory[1] = {0, 1, 0};
  EXPECT_EQ(HostNeed(table, 0), 20u) << "room for the context may be needed";
}

// Others have grown into free memory without asking. The program's allocation is not refused for
// it.
TEST(PolicyTest, AnAllocationDoesNotFailForWhatOthersHaveDone) {
  Table table = MakeTable(2);
  AddAwake(&table, "idle", 50).used_last = Time(0);
  Program& asks = AddAwake(&table, "asks", 10);
  asks.memory[0].asked = 50;
  asks.wanted_since = seconds(990);
  Program& large = AddAwake(&table, "large", 0);
  large.memory[1].data = 70;
  Program& away = AddAsleep(&table, "away", 0);
  away.memory[1].data = 70;
  table.host_bytes = 139;
  EXPECT_EQ(Actions(table), "suspend idle");
}

// Else it, or another one, could later wait at its gate for ever.
TEST(PolicyTest, AnAllocationFailsThatLeavesTooLittleHostMemory) {
  Table table = MakeTable();
  AddAwake(&table, "idle", 50).used_last = Time(0);
  AddAsleep(&table, "asleep", 20);
  Program& asks = AddAwake(&table, "asks", 10);
  asks.memory[0].asked = 50;
  asks.wanted_since = seconds(990);
  table.host_bytes = 129;
  EXPECT_EQ(Actions(table), "");
  EXPECT_EQ(Refusals(table), "asks host");
  table.host_bytes = 130;
  EXPECT_EQ(Actions(table), "suspend idle");
  // What another asks for counts only when it was granted.
  Program& other = AddAwake(&table, "other", 1);
  other.memory[0].asked = 50;
  other.wanted_since = seconds(995);
  table.host_bytes = 131;
  EXPECT_EQ(Actions(table), "suspend idle");
  EXPECT_EQ(Refusals(table), "other host");
}

TEST(PolicyTest, AProgramThatFitsNowhereIsRefused) {
  Table table = MakeTable();
  AddWaiting(&table, "huge", 75, 990, 6);
  EXPECT_EQ(Refusals(table), "huge gpu");
}

}  // namespace
}  // namespace stasis::sharing
