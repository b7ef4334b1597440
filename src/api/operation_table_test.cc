#include "api/operation_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stasis::api {
namespace {

Caller User(uid_t uid, uid_t account) {
  Caller caller;
  caller.uid = uid;
  caller.account = account;
  return caller;
}

// Begins calls until one is refused or `most` have begun. Returns how many have begun.
size_t Fill(OperationTable& operations, const Caller& caller, size_t most) {
  size_t begun = 0;
  while (begun < most && operations.Begin(caller, "WaitJob", false, "job")) ++begun;
  return begun;
}

TEST(OperationTableTest, SubordinateIdsShareTheLimitOfTheirOwner) {
  OperationTable operations;
  EXPECT_EQ(Fill(operations, User(4001, 4001), 100), 100u);
  EXPECT_EQ(Fill(operations, User(100000, 4001), 100), OperationTable::kMaxCallsOfUser - 100);
  auto refused = operations.Begin(User(100001, 4001), "WaitJob", false, "job");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_EQ(Fill(operations, User(4002, 4002), 1), 1u);
}

TEST(OperationTableTest, SomeCallsAreReservedForRootAndTheDaemonsUser) {
  OperationTable operations;
  size_t begun = 0;
  for (uid_t uid = 50000; uid < 50020; ++uid) begun += Fill(operations, User(uid, uid), 1000);
  EXPECT_EQ(begun, OperationTable::kMaxCalls - OperationTable::kReservedCalls);
  EXPECT_EQ(Fill(operations, User(0, 0), 1000), OperationTable::kMaxCallsOfUser);
  if (::geteuid() == 0) return;
  EXPECT_FALSE(operations.Begin(User(::geteuid(), ::geteuid()), "WaitJob", false, "job"));
}

TEST(OperationTableTest, HoldsAreCountedApartFromOtherCalls) {
  OperationTable operations;
  const Caller one = User(4001, 4001);
  EXPECT_EQ(Fill(operations, one, 1000), OperationTable::kMaxCallsOfUser);
  std::string last;
  for (size_t i = 0; i < OperationTable::kMaxCallsOfUser; ++i) {
    auto held = operations.BeginHold(one);
    ASSERT_TRUE(held) << i;
    last = *held;
  }
  auto refused = operations.BeginHold(one);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("commands without the daemon"), std::string::npos);
  EXPECT_FALSE(refused.error().hint.empty());
  EXPECT_TRUE(operations.BeginHold(User(4002, 4002)));
  operations.End(last);
  EXPECT_TRUE(operations.BeginHold(one));
}

TEST(OperationTableTest, ACallerHasCallsUntilTheLastEnds) {
  OperationTable operations;
  const Caller one = User(4001, 4001);
  Caller other = one;
  other.groups = {7};
  EXPECT_FALSE(operations.HasCalls(one));
  auto id = operations.Begin(one, "Suspend", true, "job");
  ASSERT_TRUE(id);
  EXPECT_TRUE(operations.HasCalls(one));
  EXPECT_FALSE(operations.HasCalls(other));
  operations.Finish(*id);
  EXPECT_TRUE(operations.HasCalls(one));
  operations.End(*id);
  EXPECT_FALSE(operations.HasCalls(one));
}

}  // namespace
}  // namespace stasis::api
