#include "coordinator/look_ahead.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "coordinator/shared_members.h"
#include "coordinator/shared_resume.h"
#include "coordinator/suspended.h"

namespace stasis::coordinator {
namespace {

using device::ProcessState;

// The driver says so only when the program stands still (seen on driver 580; softgpu does the
// same).
Status CheckManaged(const process::ProcessId& id) {
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent || agent->hello().driver.managed_bytes == 0) return {};
  return Fail(
      Code::kUnimplemented,
      fmt::format("it has {} MiB of managed memory, of which the driver makes no checkpoint",
                  (agent->hello().driver.managed_bytes + (1 << 20) - 1) >> 20),
      "have it use cudaMalloc in the place of cudaMallocManaged");
}

// `members`: those that would take part in a suspend, with all of the target.
void LookAt(Services& services, const RecordedProcess& process, Outlook& outlook,
            std::vector<SharedMember>& members) {
  auto refuse = [&](Status status) {
    if (!status) outlook.refusals.push_back(std::move(status).error());
  };
  if (process.suspended()) {
    refuse(CheckNotMoved(services.paths, process.id));
    SharedResume stored(services, {});
    refuse(stored.Look({process}));
    outlook.carried_bytes += stored.bytes();
    return;
  }
  if (process.initial != ProcessState::kRunning) return;
  // Before the members keep their agents: each has one client at a time.
  refuse(Annotate(CheckManaged(process.id), fmt::format("process {}", process.id.pid.value)));
  auto found = FindSharedMembers({process}, OperationOptions());
  if (!found) return outlook.refusals.push_back(std::move(found).error());
  for (const std::string& why : found->left_to_driver) {
    outlook.left_to_driver.push_back(why + ": the driver carries its memory");
  }
  uint64_t carried = 0;
  for (const Lot& lot : found->lots) carried += lot.bytes();
  outlook.carried_bytes += carried;
  outlook.driver_bytes += process.device_bytes - std::min(process.device_bytes, carried);
  std::move(found->members.begin(), found->members.end(), std::back_inserter(members));
}

uint64_t UnusedArenaBytes(const Paths& paths) {
  auto store = ArenasThereAre(paths);
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
    STASIS_TRY(CheckNotUnderWay(services.paths, member.id));
  }
  STASIS_ASSIGN(Operation operation, survey.ToOperation("check"));
  Outlook outlook;
  std::vector<SharedMember> members;
  for (const auto& process : operation.device_processes) {
    LookAt(services, process, outlook, members);
  }
  if (auto alone = CheckPeers(members); !alone) {
    outlook.refusals.push_back(std::move(alone).error());
  }
  outlook.unused_bytes = UnusedArenaBytes(services.paths);
  return outlook;
}

}  // namespace stasis::coordinator
