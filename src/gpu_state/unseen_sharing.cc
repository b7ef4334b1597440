#include "gpu_state/unseen_sharing.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/inspect.h"
#include "gpu_state/agents.h"

namespace stasis::gpu_state {
namespace {

using device::ProcessState;

constexpr size_t kMostNamed = 8;

// Lists the pids as "4711, 4712 and 4713".
std::string Named(const UnseenProcesses& unseen) {
  const size_t named = unseen.size() > kMostNamed ? kMostNamed - 1 : unseen.size();
  std::string text;
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == unseen.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", unseen[i].id.pid.value);
  }
  if (named < unseen.size()) text += fmt::format(" and {} more", unseen.size() - named);
  return text;
}

// Returns true for a rank of NCCL without peer memory and cuMem handles: it shares only host
// memory, in files.
Result<bool> IsHarmlessRank(const UnseenProcess& process) {
  STASIS_ASSIGN(auto findings, device::Inspect(process.id.pid));
  return !findings.empty() && std::none_of(findings.begin(), findings.end(),
                                           [](const auto& finding) { return finding.fatal; });
}

}  // namespace

void NoteUnseen(agent_client::Agents& agents, const plan::RecordedProcess& process,
                const agent_protocol::HelloReply* hello, UnseenProcesses& unseen) {
  if (process.context_kept) return;  // so it has an agent
  if (process.initial == ProcessState::kCheckpointed) {
    auto header = agents.ReadHeader(process.id.pid);
    const bool none = !header && header.error().code == Code::kNotFound;
    if (none) unseen.push_back({process.id, {}, /*away=*/true});
  } else if (hello == nullptr) {
    unseen.push_back({process.id, {}});
  } else if ((hello->blockers & agent_protocol::kBlockerUnknownFunction) != 0) {
    unseen.push_back({process.id, WhyNotShared(*hello)});
  }
}

std::optional<std::string> UnseenSharing(const UnseenProcesses& unseen) {
  if (unseen.size() < 2) return {};
  return fmt::format(
      "processes {} run without an agent that sees all their calls, so shared GPU memory cannot be "
      "detected, and the driver would not restore it",
      Named(unseen));
}

Status CheckSharingSeen(const UnseenProcesses& unseen) {
  auto away = [](const UnseenProcess& process) { return process.away; };
  if (unseen.size() < 2 || std::all_of(unseen.begin(), unseen.end(), away)) return {};
  bool harmless = true;
  for (const UnseenProcess& process : unseen) {
    if (!harmless) break;
    STASIS_ASSIGN(harmless, IsHarmlessRank(process));
  }
  if (harmless) return {};
  auto has_agent = [](const UnseenProcess& process) { return !process.missed.empty(); };
  std::string what = *UnseenSharing(unseen);
  auto partly = std::find_if(unseen.begin(), unseen.end(), has_agent);
  if (partly != unseen.end()) {
    what += fmt::format(" (the agent of process {} does not see all calls: {})",
                        partly->id.pid.value, partly->missed);
  }
  std::string hint = "if they share none, use --assume-unshared (docs/compatibility.md)";
  if (!std::all_of(unseen.begin(), unseen.end(), has_agent)) {
    hint = "start the program with `stasis run`, whose agent detects and saves it; or " + hint;
  }
  return Fail(Code::kUnimplemented, std::move(what), std::move(hint));
}

}  // namespace stasis::gpu_state
