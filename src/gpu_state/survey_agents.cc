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
  auto agent = agents_->Connect(pid, std::min(timeout, kLongestAnswer));
  // kNotFound is an answer: there is no agent.
  if (!agent && agent.error().code != Code::kNotFound) failed_ |= !IsLasting(agent.error());
  return agent;
}

}  // namespace stasis::gpu_state
