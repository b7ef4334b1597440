#include "agent_client/retry.h"

#include <gtest/gtest.h>

namespace stasis::agent_client {
namespace {

using std::chrono::milliseconds;

// Fails `failures` times with this code.
struct Agent {
  int failures;
  Code code = Code::kAborted;
  int calls = 0;
  Result<int> Connect() {
    if (++calls <= failures) return Fail(code, "refused");
    return 7;
  }
};

TEST(RetryWhileBusyTest, WaitsForTheOtherClientToLeave) {
  Agent agent{2};
  EXPECT_EQ(RetryWhileBusy(milliseconds(1000), [&] { return agent.Connect(); }).value(), 7);
  EXPECT_EQ(agent.calls, 3);
}

TEST(RetryWhileBusyTest, GivesUpAtItsLimit) {
  Agent agent{1000};
  auto refused = RetryWhileBusy(milliseconds(5), [&] { return agent.Connect(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAborted);
  EXPECT_LT(agent.calls, 10);
}

TEST(RetryWhileBusyTest, ReturnsOtherErrorsAtOnce) {
  Agent agent{1000, Code::kNotFound};
  EXPECT_FALSE(RetryWhileBusy(milliseconds(1000), [&] { return agent.Connect(); }));
  EXPECT_EQ(agent.calls, 1);
}

}  // namespace
}  // namespace stasis::agent_client
