// Selection of places for arenas. Memory comes first; disk is used only if the user asks for it
// (--spill), or for a dump whose data does not fit into memory.
//
//   explicit        Paths::arena or ArenaOptions::place: only this one; a tmpfs
//   own mount       RUN/arena, a tmpfs mounted there if permitted: huge pages, no swap if the
//                   kernel supports that (6.4), limited only by the machine's memory
//   run             RUN/arena if RUN is already on a tmpfs; its size is set elsewhere
//   shared memory   /dev/shm/stasis-UID
//   disk            the directory of --spill, or a hidden folder in ArenaOptions::overflow_dir
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

// Bytes of host memory, with respect to its two limits: what all jobs of the machine share, and
// what is left to this process by its control groups. As room, the maximum of uint64_t if there is
// no limit.
struct MemoryRoom {
  uint64_t machine_bytes = 0;
  uint64_t groups_bytes = 0;
};

struct ArenaOptions {
  std::string place;      // empty: Paths::arena, or by the rules above
  std::string spill_dir;  // new arenas are created here instead
  // If set, ArenaStore::Acquire creates an arena that does not fit into memory in a file there. An
  // arena fits if `keep_free` stays free and those of this store take at most `most_own_bytes` of
  // memory (0: no limit).
  std::string overflow_dir;
  MemoryRoom keep_free;  // for the driver and for movers
  uint64_t most_own_bytes = 0;
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

// Opens a hidden folder of this user and machine in `directory`, for arenas that do not fit into
// memory, and records it like a spill folder. Other machines may share the directory, and their
// sweeps must not find these arenas. Returns kUnimplemented if the file system is in memory too.
Result<ArenaPlace> OpenOverflow(const Paths& paths, const std::string& directory);
// Returns true if OpenOverflow made the folder.
bool IsOverflow(const std::string& folder);
// Removes the folder of an arena, and its record, if OpenOverflow made it and it is empty.
void RemoveEmptyOverflow(const Paths& paths, const std::string& folder);

// Keeps RUN/arena mounted while the returned descriptor is open. Hold it while places are in use.
Result<UniqueFd> HoldPlaces(const Paths& paths);

// Unmounts the tmpfs at RUN/arena if it has no files and is not held by HoldPlaces. A state
// directory with a mount in it cannot be removed. Returns true if it was unmounted.
bool UnmountUnused(const Paths& paths);

// Returns the available host memory in bytes (MemAvailable); the maximum of uint64_t if unknown.
uint64_t MemoryAvailable();

// Returns the bytes that can be allocated in `place` now: the free space of its file system and,
// for memory, what the machine and the control groups have beyond `keep_free`.
Result<uint64_t> RoomIn(const ArenaPlace& place, bool ignore_memory_check,
                        const MemoryRoom& keep_free = {});

// The two limits of RoomIn for a place in memory; the file system counts as the machine's.
Result<MemoryRoom> MemoryRoomIn(const ArenaPlace& place);

}  // namespace stasis::dataplane
