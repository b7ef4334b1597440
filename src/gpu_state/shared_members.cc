#include "gpu_state/shared_members.h"

#include <fmt/format.h>

#include <utility>

#include "gpu_state/ipc_peers.h"
#include "plan/journal.h"

namespace stasis::gpu_state {
namespace {

using device::ProcessState;
using plan::RecordedProcess;

// The driver's lock does not hold up calls that ask how far work is, and between its checkpoint and
// its restore they may read memory that is gone (driver 580: docs/measurements/driver-lock.md).
// An agent holds them back; nobody else does. Most programs rarely come there, but XLA, which JAX
// runs on, has a thread that does nothing else.
Status CheckSurvivesDriver(const process::ProcessId& id) {
  constexpr std::string_view kRuntime = "/xla_cuda_plugin";
  STASIS_ASSIGN(auto mappings, process::ReadMappings(id.pid));
  for (const auto& mapping : mappings) {
    if (mapping.path.find(kRuntime) == std::string::npos) continue;
    return Fail(Code::kUnimplemented,
                "it runs on XLA (" + mapping.path +
                    "), a thread of which reads GPU state past the driver's lock: the driver's "
                    "checkpoint would kill it",
                fmt::format("start it by `stasis run`, whose agent holds that thread back; `stasis "
                            "gpu checkpoint {}` does it all the same",
                            id.pid.value));
  }
  return {};
}

// Memory that only the driver can take, and it takes the context with it.
Error NeedsDriver(const RecordedProcess& process, const std::string& why, bool has_agent) {
  const bool locked = process.initial == ProcessState::kLocked;
  Error error{locked ? Code::kFailedPrecondition : Code::kUnimplemented};
  error.message = why + ", and without the driver's checkpoint only an agent can take its memory";
  error.hint =
      fmt::format("without --keep-context its context leaves too, by the driver{}",
                  has_agent ? "" : "; or start it by `stasis run`, which puts the agent in");
  if (locked) error.hint = fmt::format("`stasis gpu unlock {}` first", process.id.pid.value);
  return error;
}

Status Consider(const RecordedProcess& process, const AwayOptions& options, SharedMembers& found) {
  if (process.initial != ProcessState::kRunning && process.initial != ProcessState::kLocked) {
    NoteUnseen(process, nullptr, found.unseen);
    return {};
  }
  // What is left of it on the GPU is the driver's.
  if (process.context_kept) return {};
  STASIS_ASSIGN(auto agent, FindAgent(process.id));
  auto leave = [&](const std::string& why) -> Status {
    if (agent) STASIS_TRY(CheckSharesNothing({process.id, &agent->hello()}, why));
    if (options.keep_context) return Fail(NeedsDriver(process, why, agent.has_value()));
    if (agent && agent->hello().imported_ranges > 0) {
      return Fail(Code::kUnimplemented,
                  why +
                      ", and the driver alone could not restore memory that came back by an "
                      "earlier resume");
    }
    found.left_to_driver.push_back(fmt::format("process {}: {}", process.id.pid.value, why));
    return CheckSurvivesDriver(process.id);
  };
  NoteUnseen(process, agent ? &agent->hello() : nullptr, found.unseen);
  if (!agent) return leave("no agent in the program");
  const agent_protocol::HelloReply& hello = agent->hello();
  if (hello.state != agent_protocol::State::kOpen) {
    return Fail(Code::kFailedPrecondition,
                hello.state == agent_protocol::State::kReleased
                    ? "its memory was given away and never came back"
                    : "its memory came back, but its stack limits did not: it does not run on",
                fmt::format("`stasis resume {}` gives it what is missing", process.id.pid.value));
  }
  // The driver's checkpoint of these would succeed, and its restore would not.
  constexpr uint32_t kFatal = agent_protocol::kBlockerSharedVmm |
                              agent_protocol::kBlockerLegacyIpc | agent_protocol::kBlockerIpcEvent;
  if ((hello.blockers & kFatal) != 0) {
    return Fail(
        Code::kUnimplemented, WhyNotShared(hello),
        "all who share it must have been started under the agent (`stasis run`); with NCCL, "
        "NCCL_NVLS_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 in its environment avoids it");
  }
  if (options.driver_alone) return leave("the driver was to carry all");
  if (process.initial == ProcessState::kLocked) return leave("the driver has it locked");
  if (std::string why = WhyNotShared(hello); !why.empty()) return leave(why);
  if (hello.range_count == 0 && hello.ipc_ranges == 0 && !options.keep_context) {
    return leave("its agent has no memory to carry");
  }
  STASIS_TRY(CheckDescriptorsFit(*agent));
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(process.id.pid));
  SharedMember member;
  member.id = process.id;
  member.owner = credentials.uid[1];
  member.range_bytes = hello.range_bytes;
  const agent_protocol::DriverAccount& driver = hello.driver;
  found.driver_bytes += driver.tiny_bytes + driver.plain_bytes + driver.pool_bytes +
                        driver.managed_bytes + driver.program_vmm_bytes;
  for (uint32_t i = 0; i < hello.device_count; ++i) {
    const auto& device = hello.devices[i];
    if (device.ranges == 0) continue;
    Lot lot;
    lot.key = {process.id, UuidOf(device.uuid)};
    lot.owner = member.owner;
    lot.member = found.members.size();
    lot.ranges.push_back({0, device.range_bytes, 0, 0});
    STASIS_TRY(dataplane::LayOut(lot.ranges));
    found.lots.push_back(std::move(lot));
  }
  member.client = std::move(agent->client);
  found.members.push_back(std::move(member));
  return {};
}

}  // namespace

Result<SharedMembers> FindSharedMembers(const Processes& processes, const AwayOptions& options) {
  SharedMembers found;
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(Consider(process, options, found),
                        fmt::format("process {}", process.id.pid.value)));
  }
  return found;
}

Status CheckPeers(const std::vector<SharedMember>& members) {
  std::vector<IpcMember> each;
  for (const SharedMember& member : members) each.push_back({member.id, &member.client->hello()});
  return CheckIpcPeers(each);
}

}  // namespace stasis::gpu_state
