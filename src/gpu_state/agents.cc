#include "gpu_state/agents.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "device/device_control.h"
#include "process/identity.h"

namespace stasis::gpu_state {

Result<std::unique_ptr<agent_client::AgentLink>> FindAgent(agent_client::Agents& agents,
                                                           const process::ProcessId& id,
                                                           std::chrono::milliseconds timeout) {
  if (::geteuid() != 0) {
    auto stat = process::ReadStat(id.pid);
    if (!stat || stat->id != id) return nullptr;
    STASIS_TRY(process::CheckOwn(*stat, Caller::Self()));
  }
  auto agent = agents.Connect(id.pid, timeout);
  if (agent) return agent;
  Error error = std::move(agent).error();
  if (error.code == Code::kNotFound) return nullptr;
  if (error.hint.empty() && error.code == Code::kPermissionDenied) {
    error.hint =
        "reaching the agent requires the right to trace the process: run this as root, or see "
        "kernel.yama.ptrace_scope";
  }
  return Fail(std::move(error));
}

std::string WhyNotShared(const agent_protocol::HelloReply& hello) {
  if (hello.blockers != 0) {
    return hello.blocker_text[0] != '\0' ? hello.blocker_text : "its agent cannot save its memory";
  }
  return "";
}

Status CheckDescriptorsFit(const process::ProcessId& id, const agent_protocol::HelloReply& hello) {
  rlimit limit{};
  if (::prlimit(id.pid.value, RLIMIT_NOFILE, nullptr, &limit) != 0) return {};
  STASIS_ASSIGN(auto open, process::ReadOpenFiles(id.pid));
  // The agent computes the needed number of descriptors in the same way (agent/requests.cc). It
  // includes descriptors for two packets in flight.
  const uint64_t needed = open.size() + hello.range_count - hello.kept_descriptors +
                          size_t{2} * agent_protocol::kMaxBatch;
  if (needed <= limit.rlim_cur) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("it needs {} file descriptors and its limit is {} (ulimit -n)", needed,
                          limit.rlim_cur),
              fmt::format("`prlimit --pid {} --nofile={}:` raises the limit while it runs",
                          id.pid.value, needed + needed / 4));
}

Result<uint32_t> MemoryOf(agent_client::Agents& agents, const process::ProcessId& id) {
  auto header = agents.ReadHeader(id.pid);
  if (header && (header->memory & agent_protocol::kMemoryTold) != 0) return header->memory;
  if (!header && header.error().code == Code::kNotFound) return uint32_t{0};
  STASIS_ASSIGN(auto agent, FindAgent(agents, id));
  if (!agent) return uint32_t{0};
  return (agent->hello().state == agent_protocol::State::kReleased ? agent_protocol::kMemoryAway
                                                                   : 0u) |
         (agent->hello().imported_ranges > 0 ? agent_protocol::kMemoryImported : 0u);
}

bool SaysMemoryIsAway(agent_client::Agents& agents, process::HostPid pid) {
  auto header = agents.ReadHeader(pid);
  return header && (header->memory & agent_protocol::kMemoryTold) != 0 &&
         (header->memory & agent_protocol::kMemoryAway) != 0;
}

std::optional<SuspendedProcess> LoadKeptContext(const Paths& paths, const process::ProcessId& id,
                                                agent_client::Agents& agents) {
  auto record = LoadSuspended(paths, id);
  if (!record || !record->context_kept) return std::nullopt;
  auto header = agents.ReadHeader(id.pid);
  if (!header && header.error().code == Code::kNotFound) return std::nullopt;
  const bool told = header && (header->memory & agent_protocol::kMemoryTold) != 0;
  if (told && (header->memory & agent_protocol::kMemoryAway) == 0) return std::nullopt;
  return record;
}

device::GpuUuid UuidOf(const agent_protocol::Uuid& uuid) { return device::GpuUuidOf(uuid.bytes); }

std::chrono::milliseconds TimeLeft(const Deadline& deadline, std::chrono::milliseconds most) {
  if (deadline.never()) return most;
  return std::min(most, std::chrono::milliseconds(deadline.PollTimeout()));
}

}  // namespace stasis::gpu_state
