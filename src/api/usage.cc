// Finds the resources that a user's programs use, for the daemon's metrics.
#include <algorithm>

#include "api/methods.h"
#include "api/worker_credentials.h"
#include "dataplane/arena.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/suspended.h"
#include "jobs/store.h"

namespace stasis::api {
namespace {

void AddJobs(const Paths& paths, v1::Usage& usage) {
  auto listed = jobs::Store(paths.jobs()).List();
  if (!listed) return;
  for (const auto& entry : *listed) {
    const auto state = entry.job ? jobs::StateName(entry.job->state) : "damaged";
    ++(*usage.mutable_jobs())[std::string(state)];
  }
}

void AddSuspended(const Paths& paths, v1::Usage& usage) {
  for (const auto& process : gpu_state::ListSuspended(paths)) {
    usage.set_suspended_processes(usage.suspended_processes() + 1);
    usage.set_suspended_bytes(usage.suspended_bytes() + process.device_bytes);
    const int64_t earliest = usage.suspended_since_unix_s();
    usage.set_suspended_since_unix_s(earliest == 0 ? process.since_unix_s
                                                   : std::min(earliest, process.since_unix_s));
  }
}

Status AddArenas(const Paths& paths, v1::Usage& usage) {
  auto store = gpu_state::ExistingArenas(paths);
  // Report the room of the first place for arenas if that place is in memory, and otherwise the
  // room of /dev/shm, which new arenas can use.
  const dataplane::ArenaPlace place =
      store && store->places().front().in_memory()
          ? store->places().front()
          : dataplane::ArenaPlace{dataplane::ArenaPlace::Kind::kSharedMemory, "/dev/shm"};
  STASIS_ASSIGN(const uint64_t room, dataplane::RoomIn(place, /*ignore_memory_check=*/false));
  usage.set_arena_room_bytes(room);
  if (!store) return {};
  STASIS_ASSIGN(auto arenas, store->List());
  for (const auto& arena : arenas) {
    (*usage.mutable_arena_bytes())[std::string(dataplane::StateName(arena))] +=
        arena.capacity_bytes;
  }
  return {};
}

}  // namespace

Result<v1::Usage> GetUsage(Call& call, const v1::UsageRequest&) {
  v1::Usage usage;
  *usage.mutable_folders() = FoldersOf(call.paths);
  AddJobs(call.paths, usage);
  AddSuspended(call.paths, usage);
  STASIS_TRY(AddArenas(call.paths, usage));
  return usage;
}

}  // namespace stasis::api
