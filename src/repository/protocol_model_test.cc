#include <gtest/gtest.h>

#include "repository/protocol_model_testing.h"

namespace stasis::repository::model {

namespace {

std::string Describe(const Verdict& verdict) {
  std::string text = "after " + std::to_string(verdict.states) + " states:";
  for (const std::string& step : verdict.trace) text += "\n  " + step;
  return text;
}

constexpr Actors kOnePush{1, 1, true, false};
constexpr Actors kTwoPushes{2, 1, true, false};
constexpr Actors kTwoGcs{1, 2, true, false};

TEST(ProtocolModel, HoldsForOnePushAndGc) {
  const Verdict verdict = Checker(kOnePush, Without::kNothing).Run();
  EXPECT_TRUE(verdict.holds()) << Describe(verdict);
  EXPECT_GT(verdict.states, 1000u);
}

TEST(ProtocolModel, HoldsForTwoPushesAndGc) {
  const Verdict verdict = Checker(kTwoPushes, Without::kNothing).Run();
  EXPECT_TRUE(verdict.holds()) << Describe(verdict);
  EXPECT_GT(verdict.states, 10'000u);
}

TEST(ProtocolModel, HoldsForPushAndTwoGcs) {
  const Verdict verdict = Checker(kTwoGcs, Without::kNothing).Run();
  EXPECT_TRUE(verdict.holds()) << Describe(verdict);
  EXPECT_GT(verdict.states, 10'000u);
}

TEST(ProtocolModelNightly, HoldsForTwoPushesAndTwoGcs) {
  const Verdict verdict = Checker({2, 2, true, true}, Without::kNothing).Run();
  EXPECT_TRUE(verdict.holds()) << Describe(verdict);
}

struct Rule {
  const char* name;
  Without without;
  Actors actors;
};

class ProtocolModelRules : public ::testing::TestWithParam<Rule> {};

TEST_P(ProtocolModelRules, AreAllNeeded) {
  const Verdict verdict = Checker(GetParam().actors, GetParam().without).Run();
  EXPECT_FALSE(verdict.holds()) << verdict.states << " states without a violation";
}

INSTANTIATE_TEST_SUITE_P(Each, ProtocolModelRules,
                         ::testing::Values(Rule{"Pending", Without::kPending, kOnePush},
                                           Rule{"AskCondemned", Without::kAskCondemned, kOnePush},
                                           Rule{"AskPresent", Without::kAskPresent, kOnePush},
                                           Rule{"AskInOrder", Without::kAskInOrder, kOnePush},
                                           Rule{"PendingUntilPublish",
                                                Without::kPendingUntilPublish, kOnePush},
                                           Rule{"Condemn", Without::kCondemn, kOnePush},
                                           Rule{"SecondLook", Without::kSecondLook, kOnePush},
                                           Rule{"PendingFirst", Without::kPendingFirst, kOnePush},
                                           Rule{"OwnRecordOnly", Without::kOwnRecordOnly, kTwoGcs},
                                           Rule{"Patience", Without::kPatience, kOnePush}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace

}  // namespace stasis::repository::model
