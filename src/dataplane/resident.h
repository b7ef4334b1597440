// Movers and arenas that a caller keeps between operations, with contexts and registered memory. A
// command keeps them until it exits, or leaves its movers running for the next command
// (MoverOptions::resident_dir).
//
// Of() and Keep() are thread-safe; each mover must be used by one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "dataplane/arena.h"
#include "dataplane/mover_client.h"

namespace stasis::dataplane {

class Resident {
 public:
  // All movers use `defaults`, each with its own GPU. With `keep_arenas`, Take() returns arenas
  // given to Keep().
  Resident(MoverOptions defaults, bool keep_arenas)
      : defaults_(std::move(defaults)), keep_arenas_(keep_arenas) {}

  // Returns the mover of that GPU; a new one is not started yet.
  Mover& Of(const device::GpuUuid& gpu);
  // Stops all movers and frees their GPU memory, except the contexts of resident ones.
  void StopMovers();

  bool keeps_arenas() const { return keep_arenas_; }
  // Keep stores an arena with its lock; Take returns and removes it.
  void Keep(Arena arena);
  std::optional<Arena> Take(const ArenaKey& key);

 private:
  const MoverOptions defaults_;
  const bool keep_arenas_;
  std::mutex mutex_;
  std::map<device::GpuUuid, std::unique_ptr<Mover>> movers_;
  std::map<ArenaKey, Arena> arenas_;
};

}  // namespace stasis::dataplane
