#include "gpu_state/survey_agents.h"

#include <algorithm>

namespace stasis::gpu_state {

bool IsLasting(const Error& error) {
  switch (error.code) {
    case Code::kUnimplemented:
    case Code::kPermissionDenied:
    case Code::kFailedPrecondition:
    case Code::kInvalidArgument:
      return true;
    default:
      return false;
  }
}

Result<std::unique_ptr<agent_client::AgentLink>> SurveyAgents::Connect(
    process::HostPid pid, std::chrono::milliseconds timeout) {
  if (failure_ == Failure::kSilent) {
    return Fail(Code::kUnavailable, "another agent of the program does not answer");
  }
  auto agent =
      agents_->Connect(pid, std::min(timeout, any_silent_ ? kLongestNextAnswer : kLongestAnswer));
  // kNotFound is an answer: there is no agent.
  if (agent || agent.error().code == Code::kNotFound || IsLasting(agent.error())) return agent;
  const bool silent = agent.error().code == Code::kDeadlineExceeded;
  any_silent_ |= silent;
  failure_ = std::max(failure_, silent ? Failure::kSilent : Failure::kBusy);
  return agent;
}

}  // namespace stasis::gpu_state
