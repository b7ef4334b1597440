#include "gpu_state/agents.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent_client/find.h"
#include "device/device_control.h"
#include "process/identity.h"

namespace stasis::gpu_state {

Result<std::optional<FoundAgent>> FindAgent(const process::ProcessId& id,
                                            std::chrono::milliseconds timeout) {
  if (::geteuid() != 0) {
    auto stat = process::ReadStat(id.pid);
    if (!stat || stat->id != id) return std::optional<FoundAgent>();
    STASIS_TRY(process::CheckOwn(*stat, Caller::Self()));
  }
  auto client = agent_client::AgentClient::Find(id.pid, timeout);
  if (client) return std::optional<FoundAgent>(FoundAgent{id, std::move(*client)});
  Error error = std::move(client).error();
  if (error.code == Code::kNotFound) return std::optional<FoundAgent>();
  if (error.hint.empty() && error.code == Code::kPermissionDenied) {
    error.hint =
        "the agent is reached with the right to trace a process: run it as root, or see "
        "kernel.yama.ptrace_scope";
  }
  return Fail(std::move(error));
}

std::string WhyNotShared(const agent_protocol::HelloReply& hello) {
  if (hello.blockers != 0) {
    return hello.blocker_text[0] != '\0' ? hello.blocker_text : "its agent cannot carry its memory";
  }
  return "";
}

Status CheckDescriptorsFit(const FoundAgent& agent) {
  const agent_protocol::HelloReply& hello = agent.hello();
  rlimit limit{};
  if (::prlimit(agent.id.pid.value, RLIMIT_NOFILE, nullptr, &limit) != 0) return {};
  STASIS_ASSIGN(auto open, process::ReadOpenFiles(agent.id.pid));
  // As the agent counts (agent/requests.cc): with room for two packets on their way.
  const uint64_t needed = open.size() + hello.range_count - hello.kept_descriptors +
                          size_t{2} * agent_protocol::kMaxBatch;
  if (needed <= limit.rlim_cur) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("it would need {} file descriptors and may have {} (ulimit -n)", needed,
                          limit.rlim_cur),
              fmt::format("`prlimit --pid {} --nofile={}:` allows them while it runs",
                          agent.id.pid.value, needed + needed / 4));
}

Result<uint32_t> MemoryOf(const process::ProcessId& id) {
  auto header = agent_client::ReadAgentHeader(id.pid);
  if (header && (header->memory & agent_protocol::kMemoryTold) != 0) return header->memory;
  if (!header && header.error().code == Code::kNotFound) return uint32_t{0};
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent) return uint32_t{0};
  return (agent->hello().state == agent_protocol::State::kReleased ? agent_protocol::kMemoryAway
                                                                   : 0u) |
         (agent->hello().imported_ranges > 0 ? agent_protocol::kMemoryImported : 0u);
}

bool SaysMemoryIsAway(process::HostPid pid) {
  auto header = agent_client::ReadAgentHeader(pid);
  return header && (header->memory & agent_protocol::kMemoryTold) != 0 &&
         (header->memory & agent_protocol::kMemoryAway) != 0;
}

std::optional<SuspendedProcess> LoadKeptContext(const Paths& paths, const process::ProcessId& id) {
  auto record = LoadSuspended(paths, id);
  if (!record || !record->context_kept) return std::nullopt;
  auto header = agent_client::ReadAgentHeader(id.pid);
  if (!header && header.error().code == Code::kNotFound) return std::nullopt;
  const bool told = header && (header->memory & agent_protocol::kMemoryTold) != 0;
  if (told && (header->memory & agent_protocol::kMemoryAway) == 0) return std::nullopt;
  return record;
}

device::GpuUuid UuidOf(const agent_protocol::Uuid& uuid) { return device::GpuUuidOf(uuid.bytes); }

}  // namespace stasis::gpu_state
