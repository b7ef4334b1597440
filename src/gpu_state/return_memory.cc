#include "gpu_state/return_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu_state/agents.h"

namespace stasis::gpu_state {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kAgentTimeout{60};  // long enough for lists of a million pieces

// Maps the program's own memory, behind the closed gate.
Status MapAgain(Services& services, SharedMember& member, milliseconds timeout) {
  if (!member.touched) return {};
  if (member.agent) {
    auto answer = member.agent->Status(std::min(timeout, kAgentAnswer));
    if (!answer) member.agent.reset();
    // The agent is in a driver call and would not answer another client either. When the call
    // returns and the agent has no client, it maps its memory by itself.
    if (!answer && answer.error().code == Code::kDeadlineExceeded && process::IsAlive(member.id)) {
      return Fail(std::move(answer).error());
    }
  }
  if (!member.agent) {
    if (!process::IsAlive(member.id)) return {};
    auto found = FindAgent(*services.agents, member.id, timeout);
    if (!process::IsAlive(member.id)) return {};
    if (!found) return Fail(std::move(found).error());
    if (!*found) return Fail(Code::kUnavailable, "its agent can no longer be found");
    member.agent = std::move(*found);
  }
  if (member.agent->hello().state != agent_protocol::State::kReleased) return {};
  std::vector<int> fds;
  for (const auto& fd : member.data.fds) fds.push_back(fd.get());
  return member.agent->Map(member.data.ranges, fds, timeout);
}

Status RejoinOthers(Services&, SharedMember& member, milliseconds timeout) {
  if (!member.agent || member.agent->hello().ipc_ranges == 0) return {};
  // Nothing is released before the gate is closed.
  const agent_protocol::State state = member.agent->hello().state;
  if (state == agent_protocol::State::kOpen || state == agent_protocol::State::kShut) return {};
  return member.agent->Rejoin(timeout);
}

Status OpenGate(Services&, SharedMember& member, milliseconds timeout) {
  if (!member.agent) return {};
  if (member.agent->hello().state != agent_protocol::State::kOpen) {
    STASIS_TRY(member.agent->Open(timeout));
  }
  member.touched = false;
  return {};
}

}  // namespace

// Each step is done for all programs before the next one begins. So when a program opens another
// program's memory, that memory is mapped, and no program is running that could free it.
Status ReturnMemory(Services& services, std::vector<SharedMember>& members) {
  const auto timeout = std::min<milliseconds>(services.undo_timeout(), kAgentTimeout);
  Status all;
  for (auto step : {&MapAgain, &RejoinOthers, &OpenGate}) {
    for (SharedMember& member : members) {
      Status one = step(services, member, timeout);
      if (one || !process::IsAlive(member.id)) continue;
      member.agent.reset();
      if (all) {
        all = Annotate(std::move(one), fmt::format("process {}", member.id.pid.value));
      }
    }
  }
  for (SharedMember& member : members) member.agent.reset();
  return all;
}

}  // namespace stasis::gpu_state
