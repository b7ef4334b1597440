#include "gpu_state/survey_agents.h"

#include <gtest/gtest.h>

namespace stasis::gpu_state {
namespace {

using std::chrono::milliseconds;

struct Refusing final : agent_client::Agents {
  Result<std::unique_ptr<agent_client::AgentLink>> Connect(process::HostPid,
                                                           milliseconds timeout) override {
    asked_for = timeout;
    return Fail(code, "refused");
  }
  Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid) override {
    return Fail(Code::kNotFound, "no agent");
  }
  Code code = Code::kNotFound;
  milliseconds asked_for{0};
};

TEST(SurveyAgentsTest, ABusyOrLateAgentIsNotAPropertyOfItsProgram) {
  auto agents = std::make_shared<Refusing>();
  SurveyAgents survey(agents);
  for (Code code : {Code::kAborted, Code::kDeadlineExceeded, Code::kUnavailable}) {
    agents->code = code;
    EXPECT_FALSE(survey.Connect({1}, milliseconds(10000)));
    EXPECT_TRUE(survey.TakeFailure());
    EXPECT_FALSE(survey.TakeFailure());
  }
  for (Code code : {Code::kNotFound, Code::kUnimplemented, Code::kPermissionDenied}) {
    agents->code = code;
    EXPECT_FALSE(survey.Connect({1}, milliseconds(10000)));
    EXPECT_FALSE(survey.TakeFailure());
  }
}

TEST(SurveyAgentsTest, AnAgentThatDoesNotAnswerDelaysTheSurveyBriefly) {
  auto agents = std::make_shared<Refusing>();
  SurveyAgents survey(agents);
  EXPECT_FALSE(survey.Connect({1}, milliseconds(10000)));
  EXPECT_EQ(agents->asked_for, SurveyAgents::kLongestAnswer);
  EXPECT_FALSE(survey.Connect({1}, milliseconds(10)));
  EXPECT_EQ(agents->asked_for, milliseconds(10));
}

}  // namespace
}  // namespace stasis::gpu_state
