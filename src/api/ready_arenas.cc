#include "api/ready_arenas.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <thread>

#include "api/methods.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/thread.h"
#include "dataplane/ready_plan.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/services.h"

namespace stasis::api {
namespace {

using dataplane::ArenaKey;
using dataplane::ArenaStore;
using dataplane::ReadyNeed;

constexpr int kLowestPriority = 19;
constexpr std::chrono::seconds kMoverTimeout{120};
// A mover registers this much under the lock of the file. 56 GiB take 2.4 s.
constexpr uint64_t kWarmBytes = uint64_t{1} << 30;

std::vector<ReadyNeed> NeedsOf(const v1::ReadyArenasRequest& request) {
  std::vector<ReadyNeed> needs;
  for (const auto& need : request.needs()) {
    const bool is_name = !need.gpu().empty() && need.gpu().find_first_of("/.") == std::string::npos;
    if (!is_name) continue;
    const process::ProcessId id{{static_cast<pid_t>(need.process().pid())},
                                need.process().start_ticks()};
    needs.push_back({{id, {need.gpu()}}, need.owner(), need.bytes()});
  }
  return needs;
}

// Runs `work` in a thread of the lowest priority, so that it does not slow down programs. The
// priority of this process must not change, because a mover would inherit it.
Status WithLowPriority(const std::function<Status()>& work) {
  Status status;
  STASIS_ASSIGN(Thread thread, Thread::Start([&] {
                  // Linux changes the calling thread only.
                  (void)::setpriority(PRIO_PROCESS, 0, kLowestPriority);
                  status = work();
                }));
  thread.Join();
  return status;
}

// Returns true if the context of a mover leaves enough memory free on the GPU.
bool HasRoomForMover(gpu_state::Services& services, const device::GpuUuid& uuid) {
  const auto gpus = services.device->Gpus();
  if (!gpus) return false;
  return std::any_of(gpus->begin(), gpus->end(), [&](const device::Gpu& gpu) {
    return gpu.uuid == uuid && gpu.free_bytes >= gpu.total_bytes / 16;
  });
}

// Starts the mover of a GPU, or finds it, and lets it register these arenas. It then waits for the
// suspend as long as any idle mover.
Status PrepareMover(gpu_state::Services& services, ArenaStore& store, const device::GpuUuid& gpu,
                    const std::vector<ArenaKey>& keys, const std::stop_token& stop) {
  const Deadline deadline = Deadline::In(kMoverTimeout);
  dataplane::MoverLink& mover = services.movers->MoverOf(gpu);
  STASIS_ASSIGN(const auto info, mover.Start(deadline));
  if (info.ends_with_client) return mover.Stop();
  if (auto secret = NamingSecretOf(services.paths)) (void)mover.PrepareHashes(*secret, deadline);
  for (const ArenaKey& key : keys) {
    for (uint64_t warm = 0;;) {
      {
        auto arena = store.OpenForNext(key);
        if (!arena || warm >= arena->capacity_bytes()) break;  // in use, used meanwhile, or done
        warm = std::min(warm + kWarmBytes, arena->capacity_bytes());
        STASIS_TRY(mover.Attach(*arena, deadline));
        STASIS_TRY(mover.Warm(warm, stop, deadline));
        STASIS_TRY(mover.Detach(deadline));
      }
      std::this_thread::sleep_for(2 * ArenaStore::kLockRetry);  // a suspend may wait for the lock
    }
  }
  return mover.Stop();
}

// Returns services whose idle movers stay for so long.
gpu_state::Services MoversThatStay(const Call& call, double mover_idle_s) {
  config::Settings settings = call.settings;
  settings.helper_idle_s = mover_idle_s;
  return gpu_state::MakeServices(call.paths, settings, STASIS_VERSION, /*keep_arenas=*/false);
}

// Returns the free memory; the other bounds have to be added.
Result<dataplane::ReadyBounds> BoundsNow(const ArenaStore& store) {
  STASIS_ASSIGN(const auto room, dataplane::MemoryRoomIn(store.places().front()));
  return dataplane::ReadyBounds{.free_bytes = room.machine_bytes,
                                .groups_free_bytes = room.groups_bytes};
}

Result<bool> IsScarce(ArenaStore& store, const std::vector<ReadyNeed>& needs) {
  STASIS_ASSIGN(const auto bounds, BoundsNow(store));
  STASIS_ASSIGN(const auto arenas, store.List());
  return dataplane::IsScarce(needs, arenas, bounds);
}

Result<ArenaStore> OpenStore(const Call& call, bool look_only) {
  dataplane::ArenaOptions options;
  options.most_bytes = call.settings.most_arena_bytes;
  options.look_only = look_only;
  return ArenaStore::Open(call.paths, options);
}

}  // namespace

Status KeepMovers(Call& call, const v1::ReadyArenasRequest& request, double mover_idle_s) {
  STASIS_ASSIGN(ArenaStore store, OpenStore(call, /*look_only=*/true));
  if (store.places().empty()) return {};
  std::map<device::GpuUuid, std::vector<ArenaKey>> keys;
  for (const ReadyNeed& need : NeedsOf(request)) keys[need.key.gpu].push_back(need.key);
  gpu_state::Services services =
      gpu_state::MakeServices(call.paths, call.settings, STASIS_VERSION, /*keep_arenas=*/false);
  gpu_state::Services stay = MoversThatStay(call, mover_idle_s);
  for (const auto& [gpu, of_gpu] : keys) {
    // A mover makes way for a program that needs its memory.
    if (!HasRoomForMover(services, gpu)) continue;
    STASIS_TRY(PrepareMover(stay, store, gpu, of_gpu, call.stop));
  }
  return {};
}

Result<bool> IsReadyMemoryScarce(Call& call, const v1::ReadyArenasRequest& request) {
  STASIS_ASSIGN(ArenaStore store, OpenStore(call, /*look_only=*/true));
  if (store.places().empty()) return false;
  return IsScarce(store, NeedsOf(request));
}

Result<v1::ReadyArenasResponse> ReadyArenas(Call& call, const v1::ReadyArenasRequest& request) {
  return MakeReady(call, request, call.settings.helper_idle_s);
}

Result<v1::ReadyArenasResponse> MakeReady(Call& call, const v1::ReadyArenasRequest& request,
                                          double mover_idle_s) {
  STASIS_ASSIGN(ArenaStore store, OpenStore(call, request.needs().empty()));
  v1::ReadyArenasResponse response;
  if (store.places().empty()) return response;
  STASIS_TRY(store.Sweep());
  const std::vector<ReadyNeed> needs = NeedsOf(request);
  STASIS_ASSIGN(const auto arenas, store.List());
  STASIS_ASSIGN(dataplane::ReadyBounds bounds, BoundsNow(store));
  bounds.most_bytes = request.most_bytes();
  bounds.others_ready_bytes = request.others_ready_bytes();
  bounds.complete = request.complete();
  const dataplane::ReadyPlan plan = dataplane::PlanReady(needs, arenas, bounds);
  for (const ArenaKey& key : plan.free) store.FreeReady(key);

  std::map<device::GpuUuid, std::vector<ArenaKey>> made;
  const auto go_on = [&call] { return !call.cancelled || !call.cancelled(); };
  // Programs may allocate memory meanwhile.
  const auto has_room = [&] { return go_on() && !IsScarce(store, needs).value_or(true); };
  const Status done = WithLowPriority([&]() -> Status {
    for (const ReadyNeed& need : plan.make) {
      if (!has_room()) break;
      auto ready = store.MakeReady(need.key, need.owner, need.bytes, has_room);
      if (!ready) return Fail(std::move(ready.error()));
      if (*ready > 0) made[need.key.gpu].push_back(need.key);
    }
    return {};
  });
  if (!done) response.set_problem(done.error().ToString());

  gpu_state::Services services =
      gpu_state::MakeServices(call.paths, call.settings, STASIS_VERSION, /*keep_arenas=*/false);
  gpu_state::Services stay = MoversThatStay(call, mover_idle_s);
  for (const auto& [gpu, keys] : made) {
    if (call.settings.helper_idle_s <= 0 || !go_on() || !HasRoomForMover(services, gpu)) continue;
    // The memory is ready all the same.
    if (Status prepared = PrepareMover(stay, store, gpu, keys, call.stop)) {
      response.set_movers(response.movers() + 1);
    } else {
      log::Write(log::Level::kInfo, "a mover was not made ready",
                 log::ErrorFields(prepared.error()));
    }
  }
  STASIS_ASSIGN(const auto after, store.List());
  response.set_ready_bytes(dataplane::ReadyBytes(after));
  return response;
}

}  // namespace stasis::api
