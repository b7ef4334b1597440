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

// The driver says so only when the program stands still (seen on driver 580; a software GPU does
// the same).
Status CheckManaged(const agent_protocol::HelloReply& hello) {
  if (hello.driver.managed_bytes == 0) return {};
  return Fail(
      Code::kUnimplemented,
      fmt::format("it has {} MiB of managed memory, of which the driver makes no checkpoint",
                  (hello.driver.managed_bytes + (1 << 20) - 1) >> 20),
      "have it use cudaMalloc in the place of cudaMallocManaged");
}

// What has to be looked at of all processes together. An agent has one client at a time, and others
// want to be it: what it has said is kept, and not the agent.
struct Together {
  struct Member {
    process::ProcessId id;
    agent_protocol::HelloReply hello;
  };
  std::vector<Member> members;  // they would take part in a suspend
  gpu_state::UnseenProcesses unseen;
};

void LookAt(Services& services, const plan::RecordedProcess& process, Outlook& outlook,
            Together& all) {
  auto refuse = [&](Status status) {
    if (!status) outlook.refusals.push_back(std::move(status).error());
  };
  if (process.suspended()) {
    refuse(gpu_state::CheckNotMoved(services.paths, process.id));
    gpu_state::SharedResume stored(services, {});
    refuse(stored.Look({process}));
    outlook.carried_bytes += stored.bytes();
    return gpu_state::NoteUnseen(process, nullptr, all.unseen);
  }
  if (process.initial != ProcessState::kRunning) return;
  auto found = gpu_state::FindSharedMembers({process}, gpu_state::AwayOptions());
  if (!found) return outlook.refusals.push_back(std::move(found).error());
  for (const std::string& why : found->left_to_driver) {
    outlook.left_to_driver.push_back(why + ": the driver carries its memory");
  }
  uint64_t carried = 0;
  for (const gpu_state::Lot& lot : found->lots) carried += lot.bytes();
  outlook.carried_bytes += carried;
  outlook.driver_bytes += process.device_bytes - std::min(process.device_bytes, carried);
  all.unseen.insert(all.unseen.end(), found->unseen.begin(), found->unseen.end());
  Status managed;
  if (!found->members.empty()) {
    const agent_protocol::HelloReply& hello = found->members.front().client->hello();
    managed = CheckManaged(hello);
    all.members.push_back({process.id, hello});
  } else if (auto agent = gpu_state::FindAgent(process.id); agent && *agent) {
    managed = CheckManaged((*agent)->hello());
  }
  refuse(Annotate(std::move(managed), fmt::format("process {}", process.id.pid.value)));
}

// Of a target of which each process may take part: one that may not is refused for that.
Status CheckPeersOf(const Together& all) {
  std::vector<gpu_state::IpcMember> each;
  for (const auto& member : all.members) each.push_back({member.id, &member.hello});
  return gpu_state::CheckIpcPeers(each);
}

uint64_t UnusedArenaBytes(const Paths& paths) {
  auto store = gpu_state::ArenasThereAre(paths);
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
  Together all;
  for (const auto& process : operation.device_processes) LookAt(services, process, outlook, all);
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
