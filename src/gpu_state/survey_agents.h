// Agents for a survey, which repeats soon: it waits for each agent only briefly, and notes whether
// one could not be asked for a passing reason. Then the survey says nothing about the program, and
// its other agents are not asked any more.
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
  // The same after one agent has not answered: several of them must not add up.
  static constexpr std::chrono::milliseconds kLongestNextAnswer{100};

  // Why an agent could not be asked. kSilent: it did not answer in time, as if it were stopped.
  enum class Failure { kNone, kBusy, kSilent };

  explicit SurveyAgents(std::shared_ptr<agent_client::Agents> agents)
      : agents_(std::move(agents)) {}

  Result<std::unique_ptr<agent_client::AgentLink>> Connect(
      process::HostPid pid, std::chrono::milliseconds timeout) override;
  Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid pid) override {
    return agents_->ReadHeader(pid);
  }

  // Returns whether an agent could not be asked since the last call of this function, which begins
  // with the next program.
  Failure TakeFailure() { return std::exchange(failure_, Failure::kNone); }

 private:
  const std::shared_ptr<agent_client::Agents> agents_;
  Failure failure_ = Failure::kNone;
  bool any_silent_ = false;  // in this survey
};

// Returns true for an error that is a property of the program, and false for one that may be gone
// at the next attempt.
bool IsLasting(const Error& error);

}  // namespace stasis::gpu_state
