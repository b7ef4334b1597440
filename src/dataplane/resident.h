// Movers and arenas that a caller keeps between operations, with their contexts and registered
// memory. A command keeps them until it exits, or leaves its movers running for the next command
// (MoverOptions::resident_dir).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dataplane/arena.h"
#include "dataplane/mover_client.h"
#include "dataplane/mover_pool.h"

namespace stasis::dataplane {

class Resident final : public MoverPool {
 public:
  // All movers use `defaults`, each with its own GPU. `residents` is the directory of this user's
  // resident movers, even if the movers of this object are not resident.
  Resident(MoverOptions defaults, bool keep_arenas, std::string residents)
      : defaults_(std::move(defaults)),
        keep_arenas_(keep_arenas),
        residents_(std::move(residents)) {}

  Mover& MoverOf(const device::GpuUuid& gpu) override;
  void StopMovers() override;
  Result<int> StopIdleMovers(const Deadline& deadline) override;

  bool keeps_arenas() const override { return keep_arenas_; }
  void KeepArena(Arena arena) override;
  std::optional<Arena> TakeArena(const ArenaKey& key) override;

 private:
  const MoverOptions defaults_;
  const bool keep_arenas_;
  const std::string residents_;
  std::mutex mutex_;
  std::map<device::GpuUuid, std::unique_ptr<Mover>> movers_;
  std::map<ArenaKey, Arena> arenas_;
};

}  // namespace stasis::dataplane
