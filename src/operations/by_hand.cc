#include "operations/by_hand.h"

#include <fmt/format.h>

#include "gpu_state/agents.h"
#include "gpu_state/ipc_peers.h"
#include "gpu_state/suspended.h"
#include "plan/journal.h"

namespace stasis::operations {
namespace {

using device::ProcessState;
using process::HostPid;

// Time limit for quiescing the program if the user has set none.
constexpr std::chrono::milliseconds kOwnAtMost = std::chrono::minutes(10);
constexpr std::chrono::seconds kUndo{30};

std::chrono::milliseconds Left(const Deadline& deadline) {
  return gpu_state::TimeLeft(deadline, kOwnAtMost);
}

}  // namespace

Result<ByHand> ByHand::Open(const Paths& paths, device::DeviceControl& device, HostPid pid,
                            agent_client::Agents& agents) {
  STASIS_ASSIGN(ProcessState state, device.State(pid));
  if (state == ProcessState::kNone) {
    return Fail(Code::kUnimplemented, fmt::format("process {} does not use a GPU", pid.value));
  }
  STASIS_ASSIGN(process::Stat stat, process::ReadStat(pid));
  STASIS_TRY(plan::CheckNotUnderWay(paths, stat.id));
  return ByHand(paths, device, agents, stat.id);
}

Result<bool> ByHand::IsMemoryAway() const {
  STASIS_ASSIGN(uint32_t memory, gpu_state::MemoryOf(*agents_, id_));
  return (memory & agent_protocol::kMemoryAway) != 0;
}

Result<bool> ByHand::IsSuspended() const {
  STASIS_ASSIGN(bool away, IsMemoryAway());
  if (away) return true;
  STASIS_ASSIGN(ProcessState state, device_->State(id_.pid));
  return state != ProcessState::kRunning && gpu_state::LoadSuspended(*paths_, id_).has_value();
}

Status ByHand::RefuseSuspended() const {
  STASIS_ASSIGN(bool suspended, IsSuspended());
  if (!suspended) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("process {} was suspended by Stasis", id_.pid.value),
              fmt::format("`stasis resume {}` resumes it", id_.pid.value));
}

// Refuses shared memory. The driver can checkpoint it, but a restore fails, or the processes no
// longer share the memory.
Status ByHand::RefuseShared(const agent_protocol::HelloReply& hello) const {
  constexpr uint32_t kFatal = agent_protocol::kBlockerSharedVmm |
                              agent_protocol::kBlockerLegacyIpc | agent_protocol::kBlockerIpcEvent;
  if ((hello.blockers & kFatal) != 0) {
    return Fail(Code::kUnimplemented,
                fmt::format("process {}: {}", id_.pid.value, gpu_state::WhyNotShared(hello)),
                "the driver could checkpoint this memory, but not restore it");
  }
  return gpu_state::CheckSharesNothing({id_, &hello}, "this step uses the driver alone");
}

Status ByHand::Own(const Deadline& deadline) const {
  const Deadline by = Deadline::Sooner(deadline, Deadline::In(kOwnAtMost));
  const auto header = agents_->ReadHeader(id_.pid);
  STASIS_ASSIGN(auto agent,
                gpu_state::FindAgent(*agents_, id_, std::min(gpu_state::kAgentAnswer, Left(by))));
  if (!agent) return {};
  STASIS_TRY(RefuseShared(agent->hello()));
  if (agent->hello().imported_ranges == 0) return {};
  if (header && (header->memory & agent_protocol::kMemoryTold) == 0) {
    return Fail(
        Code::kUnimplemented,
        fmt::format("process {} has GPU memory that an earlier resume recreated, and its agent "
                    "is too old to copy it",
                    id_.pid.value),
        fmt::format("use `stasis suspend {}`, which works through the agent", id_.pid.value));
  }
  const std::string what = "copying memory that an earlier resume recreated";
  STASIS_TRY(Annotate(agent->Close(Left(by), agent_client::AgentLink::Floor::kKeep), what));
  // The gate is closed, so no other process can open the memory any more.
  Status done =
      agent->Status(gpu_state::kAgentAnswer).and_then([&](const agent_protocol::HelloReply& hello) {
        return RefuseShared(hello);
      });
  if (done) done = Annotate(agent->Own(Left(by)), what);
  auto open = agent->Open(gpu_state::kAgentAnswer);
  if (!done) return Fail(std::move(done).error());
  return Annotate(std::move(open), what);
}

Status ByHand::Lock(Memory memory, const Deadline& deadline) const {
  STASIS_TRY(RefuseSuspended());
  if (memory == Memory::kOwn) {
    // The agent of a locked process may not answer. The driver refuses the lock below for such a
    // process.
    STASIS_ASSIGN(ProcessState state, device_->State(id_.pid));
    if (state == ProcessState::kRunning) STASIS_TRY(Own(deadline));
  } else if (auto agent = gpu_state::FindAgent(*agents_, id_,
                                               std::min(gpu_state::kAgentAnswer, Left(deadline)));
             agent && *agent) {
    // This is checked before the lock, because a checkpoint may follow the lock, and the agent of a
    // locked process cannot answer.
    STASIS_TRY(gpu_state::CheckSharesNothing({id_, &(*agent)->hello()},
                                             "this step uses the driver alone"));
  }
  return device_->Lock(id_.pid, deadline);
}

Status ByHand::Checkpoint(const Deadline& deadline) const {
  STASIS_ASSIGN(uint32_t memory, gpu_state::MemoryOf(*agents_, id_));
  if ((memory & agent_protocol::kMemoryAway) != 0) return RefuseSuspended();
  // Another tool may have locked the process, so that its agent cannot answer. The agent's header
  // is sufficient for this check.
  if ((memory & agent_protocol::kMemoryShared) != 0) {
    return Fail(
        Code::kUnimplemented,
        fmt::format("process {} shares GPU memory with another process (CUDA IPC), which the "
                    "driver's checkpoint would separate",
                    id_.pid.value),
        fmt::format(
            "`stasis gpu unlock {}` lets the process run again; to suspend both through their "
            "agents, use `stasis suspend` with a job or process whose tree contains both",
            id_.pid.value));
  }
  if ((memory & agent_protocol::kMemoryImported) != 0) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("process {} has GPU memory that an earlier resume recreated; the driver "
                    "alone could not restore it",
                    id_.pid.value),
        fmt::format("use `stasis suspend {0}`, or unlock the process and use `stasis gpu "
                    "toggle {0}`; both work through its agent",
                    id_.pid.value));
  }
  return device_->Checkpoint(id_.pid, deadline);
}

Status ByHand::Restore(const device::GpuMap& map, const Deadline& deadline) const {
  STASIS_TRY(RefuseSuspended());
  return device_->Restore(id_.pid, map, deadline);
}

Status ByHand::Unlock(const Deadline& deadline) const {
  STASIS_TRY(RefuseSuspended());
  return device_->Unlock(id_.pid, deadline);
}

Status ByHand::Suspend(const Deadline& deadline) const {
  STASIS_TRY(Lock(Memory::kOwn, deadline));
  auto done = Checkpoint(deadline);
  if (done) return {};
  // Unlock the process, because it was running before.
  Error error = std::move(done).error();
  auto state = device_->State(id_.pid);
  if (state && *state == ProcessState::kLocked) {
    if (auto undone = device_->Unlock(id_.pid, Deadline::In(kUndo)); !undone) {
      error.not_undone = true;
      error.hint = "the process could not be unlocked either: " + undone.error().ToString();
    } else {
      error.message += "; the process was unlocked again";
    }
  } else if (!state || *state != ProcessState::kRunning) {
    error.not_undone = true;
  }
  return Fail(std::move(error));
}

Status ByHand::Toggle(const device::GpuMap& map, const Deadline& deadline) const {
  STASIS_TRY(RefuseSuspended());
  STASIS_ASSIGN(ProcessState state, device_->State(id_.pid));
  switch (state) {
    case ProcessState::kRunning:
      return Suspend(deadline);
    case ProcessState::kCheckpointed:
      STASIS_TRY(device_->Restore(id_.pid, map, deadline));
      return device_->Unlock(id_.pid, deadline);
    default:
      return Fail(Code::kFailedPrecondition,
                  fmt::format("process {} is {}: only running and checkpointed processes can be "
                              "toggled",
                              id_.pid.value, device::StateName(state)),
                  state == ProcessState::kLocked ? "`stasis gpu unlock` lets it run again" : "");
  }
}

}  // namespace stasis::operations
