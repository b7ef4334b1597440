// Where arenas may lie. Memory first; a folder on disk only when the user asks for it (--spill).
//
//   explicit        Paths::arena or ArenaOptions::place: that one and no other; a tmpfs
//   own mount       RUN/arena, a tmpfs mounted there when we may: huge pages, not swapped where the
//                   kernel can (6.4), no size but the machine's
//   run             RUN/arena, when RUN is on a tmpfs already; its size is another's choice
//   shared memory   /dev/shm/stasis-UID
//   disk            the folder of --spill
//
// A place belongs to one user: mode 0700, owned by us, no link; one that is not is refused, since
// /dev/shm is everybody's. Own mounts have `huge=always`, because fallocate(2), which reserves the
// memory, asks for huge pages only then (kernel 6.18; `advise` needs a mapping, which it has not).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"

namespace stasis::dataplane {

struct ArenaOptions {
  std::string place;      // empty: Paths::arena, or by the rules above
  std::string spill_dir;  // new arenas are made here instead
  bool may_mount = true;
  uint64_t mount_size_bytes = 0;  // of our own mount when it is made; 0: no limit of its own
  // A machine may grow its memory as it is used: allocate although MemAvailable says there is none.
  bool ignore_memory_check = false;
  // Of all arenas in memory together (limits.arena); 0: no limit.
  uint64_t most_bytes = 0;
};

struct ArenaPlace {
  enum class Kind { kExplicit, kOwnMount, kRun, kSharedMemory, kDisk };
  Kind kind;
  std::string path;
  bool in_memory() const { return kind != Kind::kDisk; }
};

// The places to look into, the ones for new arenas first. With `spill_dir` that is the first; it is
// remembered below RUN, so that later calls without it find what lies there.
// kUnimplemented when this machine has none.
Result<std::vector<ArenaPlace>> OpenPlaces(const Paths& paths, const ArenaOptions& options);

// Bytes that can be allocated in `place` now: what its file system has left and, in memory, what
// the machine and our control groups have left.
Result<uint64_t> RoomIn(const ArenaPlace& place, bool ignore_memory_check);

}  // namespace stasis::dataplane
