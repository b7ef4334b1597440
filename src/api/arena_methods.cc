// The methods for arenas: host memory that is kept ready for GPU data.
#include <fmt/format.h>

#include "api/methods.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "base/size.h"
#include "dataplane/arena.h"
#include "dataplane/mover_process.h"
#include "device/device_control.h"
#include "gpu_state/agents.h"

namespace stasis::api {
namespace {

using dataplane::ArenaInfo;
using dataplane::ArenaPlace;
using dataplane::ArenaStore;

constexpr std::chrono::seconds kMoverExit{20};

// Returns true if the arena's process was suspended with --keep-context.
bool ContextKept(const Paths& paths, const ArenaInfo& arena) {
  if (!arena.record || arena.kept) return false;
  return gpu_state::LoadKeptContext(paths, arena.record->key.process).has_value();
}

}  // namespace

Result<v1::ListArenasResponse> ListArenas(Call& call, const v1::ListArenasRequest&) {
  STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(call.paths));
  STASIS_ASSIGN(auto arenas, store.List());
  v1::ListArenasResponse response;
  for (const ArenaPlace& place : store.places()) {
    auto& message = *response.add_places();
    message.set_path(Utf8(place.path));
    message.set_in_memory(place.in_memory());
    message.set_room_bytes(dataplane::RoomIn(place, false).value_or(0));
  }
  for (const ArenaInfo& arena : arenas) {
    auto& message = *response.add_arenas();
    message.set_path(Utf8(arena.path));
    message.set_size_bytes(arena.capacity_bytes);
    message.set_in_memory(arena.in_memory);
    message.set_in_use(arena.in_use);
    message.set_state(std::string(dataplane::StateName(arena)));
    message.set_context_kept(ContextKept(call.paths, arena));
    message.set_damage(Utf8(arena.damage));
    if (arena.ready) {
      message.set_pid(arena.key->process.pid.value);
      message.set_gpu(Utf8(arena.key->gpu.value));
    }
    if (!arena.record) continue;
    message.set_pid(arena.record->key.process.pid.value);
    message.set_gpu(arena.record->key.gpu.value);
    message.set_data_bytes(arena.record->data_bytes);
  }
  return response;
}

Result<v1::ReserveArenaResponse> ReserveArena(Call& call, const v1::ReserveArenaRequest& request) {
  if (request.bytes() == 0 || request.bytes() > kMaxSizeBytes) {
    return FailUsage(fmt::format("{} bytes cannot be reserved", request.bytes()));
  }
  dataplane::ArenaOptions options;
  options.most_bytes = call.settings.most_arena_bytes;
  STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(call.paths, options));
  Stopwatch watch;
  STASIS_TRY(Annotate(store.Reserve(request.bytes()),
                      fmt::format("cannot reserve {} MiB", request.bytes() >> 20)));
  v1::ReserveArenaResponse response;
  response.set_reserved_bytes(request.bytes());
  response.set_place(Utf8(store.places().front().path));
  response.set_seconds(watch.Seconds());
  return response;
}

Result<v1::FreeArenasResponse> FreeArenas(Call& call, const v1::FreeArenasRequest& request) {
  // Stop the movers, because each holds registered memory and a context.
  STASIS_ASSIGN(const int movers,
                dataplane::DismissMovers(call.paths.helpers(), Deadline::In(kMoverExit)));
  // Also stop the device helpers: they register no arenas, but they hold the driver's files open.
  // If a helper hangs, the error is returned only after the arenas have been freed.
  auto helpers = device::DismissHelpers(call.paths.helpers(), Deadline::In(kMoverExit));
  uint64_t swept = 0, unused = 0;
  {
    dataplane::ArenaOptions options;
    options.look_only = true;
    STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(call.paths, options));
    STASIS_ASSIGN(swept, store.Sweep());
    STASIS_ASSIGN(unused, store.FreeUnused(request.keep_of_running()));
  }
  dataplane::UnmountUnused(call.paths);
  STASIS_TRY(helpers);
  v1::FreeArenasResponse response;
  response.set_freed_bytes(swept + unused);
  response.set_of_ended_programs_bytes(swept);
  response.set_movers_ended(static_cast<uint32_t>(movers));
  return response;
}

}  // namespace stasis::api
