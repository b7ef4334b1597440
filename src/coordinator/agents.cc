#include "coordinator/agents.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "device/device_control.h"

namespace stasis::coordinator {

Result<std::optional<FoundAgent>> FindAgent(const process::ProcessId& id,
                                            std::chrono::milliseconds timeout) {
  auto client = wire::AgentClient::Find(id.pid, timeout);
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

std::string WhyNotShared(const wire::HelloReply& hello) {
  if (hello.blockers != 0) {
    return hello.blocker_text[0] != '\0' ? hello.blocker_text : "its agent cannot carry its memory";
  }
  return "";
}

Status CheckDescriptorsFit(const FoundAgent& agent) {
  const wire::HelloReply& hello = agent.hello();
  rlimit limit{};
  if (::prlimit(agent.id.pid.value, RLIMIT_NOFILE, nullptr, &limit) != 0) return {};
  STASIS_ASSIGN(auto open, process::ReadOpenFiles(agent.id.pid));
  // As the agent counts (agent/control.cc): with room for two packets on their way.
  const uint64_t needed =
      open.size() + hello.range_count - hello.kept_descriptors + 2 * wire::kMaxBatch;
  if (needed <= limit.rlim_cur) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("it would need {} file descriptors and may have {} (ulimit -n)", needed,
                          limit.rlim_cur),
              fmt::format("`prlimit --pid {} --nofile={}:` allows them while it runs",
                          agent.id.pid.value, needed + needed / 4));
}

namespace {

Status RefuseAway(const FoundAgent& agent) {
  if (agent.hello().state != wire::State::kReleased) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("the GPU memory of process {} is with Stasis", agent.id.pid.value),
              fmt::format("`stasis resume {}` brings it back", agent.id.pid.value));
}

}  // namespace

Status CheckMemoryThere(const process::ProcessId& id) {
  STASIS_ASSIGN(auto agent, FindAgent(id));
  return agent ? RefuseAway(*agent) : Status{};
}

Status CheckDriverAlone(const process::ProcessId& id) {
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent) return {};
  STASIS_TRY(RefuseAway(*agent));
  if (agent->hello().imported_ranges == 0) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("process {} has GPU memory that came back by an earlier resume; the "
                          "driver alone could not restore it",
                          id.pid.value),
              fmt::format("use `stasis suspend {}`, which goes through its agent", id.pid.value));
}

device::GpuUuid UuidOf(const wire::Uuid& uuid) { return device::GpuUuidOf(uuid.bytes); }

}  // namespace stasis::coordinator
