#include "dataplane/resident.h"

#include "dataplane/mover_process.h"

namespace stasis::dataplane {

Mover& Resident::MoverOf(const device::GpuUuid& gpu) {
  std::lock_guard lock(mutex_);
  auto& mover = movers_[gpu];
  if (!mover) {
    MoverOptions options = defaults_;
    options.gpu = gpu;
    mover = std::make_unique<Mover>(std::move(options));
  }
  return *mover;
}

void Resident::StopMovers() {
  std::lock_guard lock(mutex_);
  movers_.clear();
}

Result<int> Resident::StopIdleMovers(const Deadline& deadline) {
  return DismissMovers(residents_, deadline);
}

void Resident::KeepArena(Arena arena) {
  std::lock_guard lock(mutex_);
  ArenaKey key = arena.key();
  arenas_.insert_or_assign(std::move(key), std::move(arena));
}

std::optional<Arena> Resident::TakeArena(const ArenaKey& key) {
  std::lock_guard lock(mutex_);
  auto it = arenas_.find(key);
  if (it == arenas_.end()) return std::nullopt;
  std::optional<Arena> arena(std::move(it->second));
  arenas_.erase(it);
  return arena;
}

}  // namespace stasis::dataplane
