// Selection of places for arenas. Memory comes first; disk is used only if the user asks for it
// (--spill).
//
//   explicit        Paths::arena or ArenaOptions::place: only this one; a tmpfs
//   own mount       RUN/arena, a tmpfs mounted there if permitted: huge pages, no swap if the
//                   kernel supports that (6.4), limited only by the machine's memory
//   run             RUN/arena if RUN is already on a tmpfs; its size is set elsewhere
//   shared memory   /dev/shm/stasis-UID
//   disk            the directory of --spill
//
// A place belongs to one user: mode 0700, owned by the caller, not a link. Others are rejected,
// since any user can write to /dev/shm. The own mount uses `huge=always`: only then does
// fallocate(2), which reserves the memory, allocate huge pages (kernel 6.18; `advise` needs a
// mapping).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/paths.h"
#include "base/result.h"

namespace stasis::dataplane {

struct ArenaOptions {
  std::string place;      // empty: Paths::arena, or by the rules above
  std::string spill_dir;  // new arenas are created here instead
  bool may_mount = true;
  // Set this to access existing arenas only: OpenPlaces then mounts nothing, creates no directory
  // in /dev/shm, and may return an empty list.
  bool look_only = false;
  // Allocate even if MemAvailable is too small, for machines that get more memory on demand.
  bool ignore_memory_check = false;
  // Limit for all arenas in memory together (limits.arena); 0: no limit.
  uint64_t most_bytes = 0;
};

struct ArenaPlace {
  enum class Kind { kExplicit, kOwnMount, kRun, kSharedMemory, kDisk };
  Kind kind;
  std::string path;
  bool in_memory() const { return kind != Kind::kDisk; }
};

// Returns the places to search; the first one is for new arenas. `spill_dir` comes first if set; it
// is recorded below RUN, so that later calls without it find its arenas. Returns kUnimplemented if
// this machine has no place.
Result<std::vector<ArenaPlace>> OpenPlaces(const Paths& paths, const ArenaOptions& options);

// Keeps RUN/arena mounted while the returned descriptor is open. Hold it while places are in use.
Result<UniqueFd> HoldPlaces(const Paths& paths);

// Unmounts the tmpfs at RUN/arena if it has no files and is not held by HoldPlaces. A state
// directory with a mount in it cannot be removed. Returns true if it was unmounted.
bool UnmountUnused(const Paths& paths);

// Returns the available host memory in bytes (MemAvailable); the maximum of uint64_t if unknown.
uint64_t MemoryAvailable();

// Returns the bytes that can be allocated in `place` now: the free space of its file system and,
// for memory, the limits of the machine and the control groups.
Result<uint64_t> RoomIn(const ArenaPlace& place, bool ignore_memory_check);

// The two limits of RoomIn for a place in memory: what all jobs of the machine share, and what is
// left to this process by its control groups. The maximum of uint64_t if there is no limit.
struct MemoryRoom {
  uint64_t machine_bytes = 0;
  uint64_t groups_bytes = 0;
};
Result<MemoryRoom> MemoryRoomIn(const ArenaPlace& place);

}  // namespace stasis::dataplane
