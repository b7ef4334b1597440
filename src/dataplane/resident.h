// What a caller keeps between operations: its movers, with their contexts, and the arenas it holds,
// with what is registered of them. A command keeps them as long as it runs; who stays longer has
// them warm, and so has whoever leaves his movers to the next command (MoverOptions::resident_dir).
//
// Threads: Of() and Keep() may be called by several; one thread at a time for each mover.
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
  // `defaults` but for the GPU. With `keep_arenas`, Take() finds what Keep() was given.
  Resident(MoverOptions defaults, bool keep_arenas)
      : defaults_(std::move(defaults)), keep_arenas_(keep_arenas) {}

  // The mover of that GPU; not started yet when it is a new one.
  Mover& Of(const device::GpuUuid& gpu);
  // Ends all of them: their GPU memory is free, but for the contexts of those that stay.
  void StopMovers();

  bool keeps_arenas() const { return keep_arenas_; }
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
