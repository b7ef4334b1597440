#include "gpu_state/shared_members.h"

#include <fmt/format.h>

#include <utility>

#include "gpu_state/ipc_peers.h"
#include "plan/journal.h"

namespace stasis::gpu_state {
namespace {

using device::ProcessState;
using plan::RecordedProcess;

// The driver's lock does not block calls that query the progress of work. Between the driver's
// checkpoint and restore such a call may read memory that is gone (driver 580:
// docs/measurements/driver-lock.md). Only an agent blocks them. Most programs rarely make such
// calls at that time, but XLA, which JAX runs on, has a thread that does nothing else.
Status CheckSurvivesDriver(const process::ProcessId& id) {
  constexpr std::string_view kRuntime = "/xla_cuda_plugin";
  STASIS_ASSIGN(auto mappings, process::ReadMappings(id.pid));
  for (const auto& mapping : mappings) {
    if (mapping.path.find(kRuntime) == std::string::npos) continue;
    return Fail(Code::kUnimplemented,
                "it runs on XLA (" + mapping.path +
                    "), which has a thread that reads GPU state despite the driver's lock: the "
                    "driver's checkpoint would kill it",
                fmt::format("start it with `stasis run`, whose agent blocks that thread; `stasis "
                            "gpu checkpoint {}` skips this check",
                            id.pid.value));
  }
  return {};
}

// The error of --keep-context for memory that only the driver can save: the driver would take the
// context off the GPU too.
Error NeedsDriver(const RecordedProcess& process, const std::string& why, bool has_agent,
                  bool no_checkpoint) {
  const bool locked = process.initial == ProcessState::kLocked;
  Error error{locked ? Code::kFailedPrecondition : Code::kUnimplemented};
  error.message = why + ", and without the driver's checkpoint only an agent can save its memory";
  error.hint =
      fmt::format("without --keep-context the driver saves it, and its context too{}",
                  has_agent ? "" : "; or start it with `stasis run`, which adds the agent");
  if (no_checkpoint) {
    error.message = why + ", and only an agent can save the memory of a HIP program";
    error.hint = has_agent ? "" : "start it with `stasis run`, which adds the agent";
  }
  if (locked) error.hint = fmt::format("run `stasis gpu unlock {}` first", process.id.pid.value);
  return error;
}

Status AddProcess(agent_client::Agents& agents, const RecordedProcess& process,
                  const AwayOptions& options, SharedMembers& found) {
  if (process.initial != ProcessState::kRunning && process.initial != ProcessState::kLocked) {
    NoteUnseen(agents, process, nullptr, found.unseen);
    return {};
  }
  // The data of this process has already left the GPU, and only the driver can carry its context.
  if (process.context_kept) return {};
  STASIS_ASSIGN(auto agent, FindAgent(agents, process.id));
  auto leave = [&](const std::string& why) -> Status {
    if (agent) STASIS_TRY(CheckSharesNothing({process.id, &agent->hello()}, why));
    if (options.keep_context)
      return Fail(NeedsDriver(process, why, agent != nullptr, options.no_checkpoint));
    if (agent && agent->hello().imported_ranges > 0) {
      return Fail(Code::kUnimplemented,
                  why +
                      ", and the driver alone could not restore memory that an earlier resume "
                      "recreated");
    }
    found.left_to_driver.push_back(fmt::format("process {}: {}", process.id.pid.value, why));
    return CheckSurvivesDriver(process.id);
  };
  NoteUnseen(agents, process, agent ? &agent->hello() : nullptr, found.unseen);
  if (!agent) return leave("no agent in the program");
  const agent_protocol::HelloReply& hello = agent->hello();
  if (hello.state != agent_protocol::State::kOpen) {
    return Fail(
        Code::kFailedPrecondition,
        hello.state == agent_protocol::State::kReleased
            ? "its GPU memory was released and has not been restored"
            : "its GPU memory was restored, but its stack limits were not, so it is not running",
        fmt::format("`stasis resume {}` restores what is missing", process.id.pid.value));
  }
  // With shared memory or IPC events, the driver's checkpoint would succeed, but its restore would
  // fail.
  constexpr uint32_t kFatal = agent_protocol::kBlockerSharedVmm |
                              agent_protocol::kBlockerLegacyIpc | agent_protocol::kBlockerIpcEvent;
  if ((hello.blockers & kFatal) != 0) {
    return Fail(
        Code::kUnimplemented, WhyNotShared(hello),
        "all processes that share it must be started with the agent (`stasis run`); NCCL does not "
        "share it if NCCL_NVLS_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 is in the program's environment");
  }
  if (options.driver_alone) return leave("the driver was chosen to save everything");
  if (process.initial == ProcessState::kLocked) return leave("the driver has it locked");
  if (std::string why = WhyNotShared(hello); !why.empty()) return leave(why);
  if (hello.range_count == 0 && hello.ipc_ranges == 0 && !options.keep_context) {
    return leave("its agent has no memory to save");
  }
  STASIS_TRY(CheckDescriptorsFit(process.id, hello));
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(process.id.pid));
  SharedMember member;
  member.id = process.id;
  member.owner = credentials.uid[1];
  const agent_protocol::DriverAccount& driver = hello.driver;
  found.driver_bytes += driver.tiny_bytes + driver.plain_bytes + driver.pool_bytes +
                        driver.managed_bytes + driver.program_vmm_bytes;
  for (uint32_t i = 0; i < hello.device_count; ++i) {
    const auto& device = hello.devices[i];
    if (device.ranges == 0) continue;
    GpuShard shard;
    shard.key = {process.id, UuidOf(device.uuid)};
    shard.owner = member.owner;
    shard.member = found.members.size();
    shard.ranges.push_back({0, device.range_bytes, 0, 0});
    STASIS_TRY(dataplane::LayOut(shard.ranges));
    found.shards.push_back(std::move(shard));
  }
  member.agent = std::move(agent);
  found.members.push_back(std::move(member));
  return {};
}

}  // namespace

Result<SharedMembers> FindSharedMembers(agent_client::Agents& agents, const Processes& processes,
                                        const AwayOptions& options) {
  SharedMembers found;
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(AddProcess(agents, process, options, found),
                        fmt::format("process {}", process.id.pid.value)));
  }
  return found;
}

Status CheckPeers(const std::vector<SharedMember>& members) {
  std::vector<IpcMember> each;
  for (const SharedMember& member : members) each.push_back({member.id, &member.agent->hello()});
  return CheckIpcPeers(each);
}

}  // namespace stasis::gpu_state
