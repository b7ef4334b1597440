// Agents for a survey, which repeats soon: it waits for each agent only briefly, and notes whether
// one could not be asked for a passing reason. Then the survey says nothing about the program.
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <memory>

#include "agent_client/agent_link.h"

namespace stasis::gpu_state {

class SurveyAgents final : public agent_client::Agents {
 public:
  static constexpr std::chrono::milliseconds kLongestAnswer{1000};

  explicit SurveyAgents(std::shared_ptr<agent_client::Agents> agents)
      : agents_(std::move(agents)) {}

  Result<std::unique_ptr<agent_client::AgentLink>> Connect(
      process::HostPid pid, std::chrono::milliseconds timeout) override;
  Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid pid) override {
    return agents_->ReadHeader(pid);
  }

  // Returns true if an agent could not be asked since the last call of this function.
  bool TakeFailure() { return std::exchange(failed_, false); }

 private:
  const std::shared_ptr<agent_client::Agents> agents_;
  bool failed_ = false;
};

// Returns true for an error that is a property of the program, and false for one that may be gone
// at the next attempt.
bool IsLasting(const Error& error);

}  // namespace stasis::gpu_state
