#include <fmt/format.h>

#include <array>
#include <memory>

#include "base/deadline.h"
#include "base/size.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "dataplane/arena.h"
#include "dataplane/mover_process.h"
#include "device/device_control.h"
#include "gpu_state/agents.h"

namespace stasis::cli {
namespace {

using dataplane::ArenaInfo;
using dataplane::ArenaPlace;
using dataplane::ArenaStore;

constexpr std::chrono::seconds kMoversEnd{20};

struct Options {
  std::string size;
};

// Returns true if the process has only given up its data and keeps its context.
bool ContextKept(const Paths& paths, const ArenaInfo& arena) {
  if (!arena.record || arena.kept) return false;
  return gpu_state::LoadKeptContext(paths, arena.record->key.process).has_value();
}

nlohmann::json ToJson(const Paths& paths, const ArenaInfo& arena) {
  nlohmann::json document = {{"path", arena.path},
                             {"size_bytes", arena.capacity_bytes},
                             {"in_memory", arena.in_memory},
                             {"in_use", arena.in_use},
                             {"state", dataplane::StateName(arena)},
                             {"context_kept", ContextKept(paths, arena)},
                             {"pid", nullptr},
                             {"gpu", nullptr},
                             {"data_bytes", 0}};
  if (arena.record) {
    document["pid"] = arena.record->key.process.pid.value;
    document["gpu"] = arena.record->key.gpu.value;
    document["data_bytes"] = arena.record->data_bytes;
  }
  if (!arena.damage.empty()) document["damage"] = arena.damage;
  return document;
}

std::string ListText(const Paths& paths, const ArenaStore& store,
                     const std::vector<ArenaInfo>& arenas) {
  if (arenas.empty()) {
    std::string places;
    for (const ArenaPlace& place : store.places()) {
      places += (places.empty() ? "" : ", ") + place.path;
    }
    return fmt::format("no memory is kept for GPU data in {}\n", places);
  }
  std::vector<std::vector<std::string>> rows = {{"SIZE", "STATE", "PID", "GPU", "DATA", "FILE"}};
  for (const ArenaInfo& arena : arenas) {
    std::vector<std::string> row = {FormatBytes(arena.capacity_bytes),
                                    std::string(dataplane::StateName(arena)) +
                                        (ContextKept(paths, arena) ? ", context kept" : ""),
                                    "-",
                                    "-",
                                    "-",
                                    arena.path};
    if (arena.record) {
      row[2] = process::ToString(arena.record->key.process.pid);
      row[3] = arena.record->key.gpu.value;
      row[4] = FormatBytes(arena.record->data_bytes);
    }
    rows.push_back(std::move(row));
  }
  return FormatTable(rows);
}

Outcome List(const Globals& globals) {
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(paths));
  STASIS_ASSIGN(auto arenas, store.List());
  nlohmann::json document = {{"places", nlohmann::json::array()},
                             {"arenas", nlohmann::json::array()}};
  for (const ArenaPlace& place : store.places()) {
    auto room = dataplane::RoomIn(place, false);
    document["places"].push_back(
        {{"path", place.path}, {"in_memory", place.in_memory()}, {"room_bytes", room.value_or(0)}});
  }
  for (const ArenaInfo& arena : arenas) document["arenas"].push_back(ToJson(paths, arena));
  for (const ArenaInfo& arena : arenas) {
    if (!arena.damage.empty()) {
      PrintStderr(fmt::format("stasis: {}: {}\n", arena.path, arena.damage));
    }
  }
  PrintResult(globals, ListText(paths, store, arenas), document);
  return 0;
}

Outcome Reserve(const Globals& globals, const std::string& size) {
  STASIS_ASSIGN(uint64_t bytes, ParseSize(size));
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  dataplane::ArenaOptions options;
  options.most_bytes = globals.settings().most_arena_bytes;
  STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(paths, options));
  Stopwatch watch;
  STASIS_TRY(Annotate(store.Reserve(bytes), "cannot reserve " + FormatBytes(bytes)));
  const std::string& place = store.places().front().path;
  PrintResult(globals,
              fmt::format("{} are ready in {} ({})\n", FormatBytes(bytes), place,
                          FormatSeconds(watch.Seconds())),
              {{"reserved_bytes", bytes}, {"place", place}, {"seconds", watch.Seconds()}});
  return 0;
}

Outcome Free(const Globals& globals) {
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  // Movers hold registered memory and a context each.
  STASIS_ASSIGN(int movers, dataplane::DismissMovers(paths.helpers(), Deadline::In(kMoversEnd)));
  // They hold no memory, but files of the driver.
  STASIS_TRY(device::DismissHelpers(paths.helpers(), Deadline::In(kMoversEnd)));
  uint64_t swept = 0, unused = 0;
  {
    dataplane::ArenaOptions options;
    options.look_only = true;
    STASIS_ASSIGN(ArenaStore store, ArenaStore::Open(paths, options));
    STASIS_ASSIGN(swept, store.Sweep());
    STASIS_ASSIGN(unused, store.FreeUnused());
  }
  dataplane::UnmountUnused(paths);
  const std::string ended =
      movers == 0 ? "" : fmt::format(", {} idle mover{} ended", movers, movers == 1 ? "" : "s");
  PrintResult(globals, fmt::format("{} given back{}\n", FormatBytes(swept + unused), ended),
              {{"freed_bytes", swept + unused},
               {"of_ended_programs_bytes", swept},
               {"movers_ended", movers}});
  return 0;
}

}  // namespace

void RegisterArena(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("arena", "Host memory that is kept ready for GPU data");
  verb->require_subcommand(1);
  verb->add_subcommand("ls", "List it: what is free, and whose data is in the rest")->callback([=] {
    select(List);
  });
  auto reserve = verb->add_subcommand(
      "reserve", "Allocate and touch memory now, so that the next suspend need not");
  reserve->add_option("SIZE", options->size, "32GiB, 512M, ...")->required();
  reserve->callback(
      [=] { select([=](const Globals& globals) { return Reserve(globals, options->size); }); });
  verb->add_subcommand("free",
                       "Give back memory without data, with data that its program has back, and "
                       "that of programs "
                       "that ended; idle movers end")
      ->callback([=] { select(Free); });
}

}  // namespace stasis::cli
