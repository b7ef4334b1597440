#include "checks/look_ahead.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu_state/ipc_peers.h"
#include "gpu_state/shared_members.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/suspended.h"
#include "plan/journal.h"

namespace stasis::checks {
namespace {

using device::ProcessState;
using gpu_state::Services;

// Refuses managed memory. The driver itself refuses it only when the program is already stopped
// (driver 580; the software GPU does the same).
Status CheckManaged(process::HostPid pid, const agent_protocol::HelloReply& hello) {
  if (hello.driver.managed_bytes == 0) return {};
  return Fail(Code::kUnimplemented,
              fmt::format("process {} has {} MiB of managed memory, which the driver cannot "
                          "checkpoint",
                          pid.value, (hello.driver.managed_bytes + (1 << 20) - 1) >> 20),
              "use cudaMalloc instead of cudaMallocManaged in the program");
}

// Data for the checks that compare all processes. Keeps the agents' answers and not the
// connections, because an agent serves one client at a time.
struct AllProcesses {
  struct Member {
    process::ProcessId id;
    agent_protocol::HelloReply hello;
  };
  std::vector<Member> members;  // would take the shared path of a suspend
  gpu_state::UnseenProcesses unseen;
};

void AddProcess(Services& services, const plan::RecordedProcess& process, Outlook& outlook,
                AllProcesses& all) {
  auto refuse = [&](Status status) {
    if (!status) outlook.refusals.push_back(std::move(status).error());
  };
  if (process.suspended()) {
    refuse(gpu_state::CheckNotMoved(services.paths, process.id));
    gpu_state::SharedResume stored(services, {});
    refuse(stored.FindArenas({process}));
    outlook.carried_bytes += stored.bytes();
    return gpu_state::NoteUnseen(*services.agents, process, nullptr, all.unseen);
  }
  if (process.initial != ProcessState::kRunning) return;
  auto found = gpu_state::FindSharedMembers(*services.agents, {process}, gpu_state::AwayOptions());
  if (!found) return outlook.refusals.push_back(std::move(found).error());
  for (const std::string& why : found->left_to_driver) {
    outlook.left_to_driver.push_back(why + ": the driver saves its memory");
  }
  uint64_t carried = 0;
  for (const gpu_state::GpuShard& shard : found->shards) carried += shard.bytes();
  outlook.carried_bytes += carried;
  outlook.driver_bytes += process.device_bytes - std::min(process.device_bytes, carried);
  all.unseen.insert(all.unseen.end(), found->unseen.begin(), found->unseen.end());
  if (!found->members.empty()) {
    const agent_protocol::HelloReply& hello = found->members.front().agent->hello();
    refuse(CheckManaged(process.id.pid, hello));
    all.members.push_back({process.id, hello});
  } else if (auto agent = gpu_state::FindAgent(*services.agents, process.id); agent && *agent) {
    refuse(CheckManaged(process.id.pid, (*agent)->hello()));
  }
}

// Checks the memory that the processes share. Called only if no process was refused because of its
// own memory.
Status CheckPeersOf(const AllProcesses& all) {
  std::vector<gpu_state::IpcMember> each;
  for (const auto& member : all.members) each.push_back({member.id, &member.hello});
  return gpu_state::CheckIpcPeers(each);
}

uint64_t UnusedArenaBytes(const Paths& paths) {
  auto store = gpu_state::ExistingArenas(paths);
  auto arenas = store ? store->List() : Result<std::vector<dataplane::ArenaInfo>>();
  uint64_t bytes = 0;
  for (const auto& arena : arenas.value_or(std::vector<dataplane::ArenaInfo>())) {
    const bool unused = arena.kept || (!arena.record && arena.damage.empty());
    if (arena.in_memory && unused && !arena.in_use) bytes += arena.capacity_bytes;
  }
  return bytes;
}

}  // namespace

Result<Outlook> LookAhead(Services& services, const Survey& survey) {
  for (const auto& member : survey.members()) {
    STASIS_TRY(plan::CheckNotUnderWay(services.paths, member.id));
  }
  STASIS_ASSIGN(plan::Operation operation, survey.ToOperation("check"));
  Outlook outlook;
  AllProcesses all;
  for (const auto& process : operation.device_processes) {
    AddProcess(services, process, outlook, all);
  }
  if (outlook.refusals.empty()) {
    if (Status known = CheckPeersOf(all); !known) {
      outlook.refusals.push_back(std::move(known).error());
    }
  }
  outlook.sharing = gpu_state::CheckSharingSeen(all.unseen);
  auto unseen = gpu_state::UnseenSharing(all.unseen);
  if (unseen && outlook.sharing) outlook.left_to_driver.push_back(*std::move(unseen));
  outlook.unused_bytes = UnusedArenaBytes(services.paths);
  return outlook;
}

}  // namespace stasis::checks
