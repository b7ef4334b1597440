// One GPU's side of the shared path back: its mover makes the memory of the lots on it, one lot
// after another, and fills it from their arenas, which may still be being read from an image. Until
// the driver's restore a ballast holds the driver's share, and that of the lots to come.
//
// Threads: one runs MakeRoom and then Load, another may call FreeBallast beside them. The mover is
// spoken to by one at a time: while it is loaded, by the thread that loads.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "dataplane/mover_client.h"
#include "gpu_state/shared_lots.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

class GpuLoad {
 public:
  // The lots have ranges; they outlive this.
  GpuLoad(dataplane::Mover& mover, std::vector<Lot*> lots)
      : mover_(mover), lots_(std::move(lots)) {}

  // The arenas are there. All memory of the first lot, and a ballast for `driver_bytes` and the
  // others: all of it, or nothing.
  Status MakeRoom(uint64_t driver_bytes, const Deadline& deadline);
  // Fills Lot::memory of each. `loaded`: bytes so far. `scope`: of the phase; null when nothing
  // runs beside it and all arenas are full.
  Status Load(plan::PhaseScope* scope, const Deadline& deadline,
              const std::function<void(uint64_t)>& loaded);
  // Returns when the ballast is no more, at most a part of a copy later.
  Status FreeBallast(plan::PhaseScope* scope, const Deadline& deadline);

 private:
  Status LoadLot(size_t index, plan::PhaseScope* scope, const Deadline& deadline,
                 const std::function<void(uint64_t)>& loaded);
  Result<uint64_t> AwaitFilled(const Lot& lot, uint64_t loaded, plan::PhaseScope* scope,
                               const Deadline& deadline);
  Status FreeIfWanted(plan::PhaseScope* scope, const Deadline& deadline);
  uint64_t BallastFor(size_t index) const;
  Status TakeMover(plan::PhaseScope* scope);
  Status ReleaseMover(const Deadline& deadline);
  bool busy();

  dataplane::Mover& mover_;
  const std::vector<Lot*> lots_;
  uint64_t driver_bytes_ = 0;
  std::mutex mutex_;     // guards all below
  bool busy_ = false;    // one of the two speaks to the mover
  bool wanted_ = false;  // somebody waits for the ballast's end
  bool free_ = true;     // there is no ballast
  bool loaded_ = false;  // of the mover's memory nothing but the ballast is needed
};

}  // namespace stasis::gpu_state
