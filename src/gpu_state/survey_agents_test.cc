#include "gpu_state/survey_agents.h"

#include <gtest/gtest.h>

namespace stasis::gpu_state {
namespace {

using std::chrono::milliseconds;

struct Refusing final : agent_client::Agents {
  Result<std::unique_ptr<agent_client::AgentLink>> Connect(process::HostPid,
                                                           milliseconds timeout) override {
    asked_for = timeout;
    ++asked;
    return Fail(code, "refused");
  }
  Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid) override {
    return Fail(Code::kNotFound, "no agent");
  }
  Code code = Code::kNotFound;
  milliseconds asked_for{0};
  int asked = 0;
};

using Failure = SurveyAgents::Failure;

TEST(SurveyAgentsTest, ABusyOrLateAgentIsNotAPropertyOfItsProgram) {
  auto agents = std::make_shared<Refusing>();
  SurveyAgents survey(agents);
  for (Code code : {Code::kAborted, Code::kDeadlineExceeded, Code::kUnavailable}) {
    agents->code = code;
    EXPECT_FALSE(survey.Connect({1}, milliseconds(10000)));
    EXPECT_EQ(survey.TakeFailure(),
              code == Code::kDeadlineExceeded ? Failure::kSilent : Failure::kBusy);
    EXPECT_EQ(survey.TakeFailure(), Failure::kNone);
  }
  for (Code code : {Code::kNotFound, Code::kUnimplemented, Code::kPermissionDenied}) {
    agents->code = code;
    EXPECT_FALSE(survey.Connect({1}, milliseconds(10000)));
    EXPECT_EQ(survey.TakeFailure(), Failure::kNone);
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

TEST(SurveyAgentsTest, SeveralAgentsThatDoNotAnswerDelayTheSurveyHardlyMoreThanOne) {
  auto agents = std::make_shared<Refusing>();
  agents->code = Code::kDeadlineExceeded;
  SurveyAgents survey(agents);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_FALSE(survey.Connect({1 + attempt}, milliseconds(10000)));
  }
  EXPECT_EQ(agents->asked, 1) << "nothing is known of the program, whatever the others say";
  EXPECT_EQ(survey.TakeFailure(), Failure::kSilent);
  EXPECT_FALSE(survey.Connect({9}, milliseconds(10000)));
  EXPECT_EQ(agents->asked_for, SurveyAgents::kLongestNextAnswer);
}

}  // namespace
}  // namespace stasis::gpu_state
