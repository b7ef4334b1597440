// Decides for which running processes host memory is made ready before their next suspend
// (arena.reserve). A pure function.
//
// The memory of the ready files stays below three bounds: `most_bytes`; so much that at least as
// much of the machine's memory stays free as is ready for all users together; and so much that at
// least as much stays free in the control groups as is ready for the processes of the needs.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "dataplane/arena.h"

namespace stasis::dataplane {

// The memory that the next suspend of a process on one GPU needs.
struct ReadyNeed {
  ArenaKey key;
  uid_t owner = 0;
  uint64_t bytes = 0;
  auto operator<=>(const ReadyNeed&) const = default;
};

struct ReadyBounds {
  uint64_t most_bytes = 0;
  uint64_t free_bytes = 0;          // of the machine's memory
  uint64_t others_ready_bytes = 0;  // ready for programs of other users
  // Left by the control groups of the processes of the needs. The memory of other jobs of the user
  // is charged elsewhere.
  uint64_t groups_free_bytes = std::numeric_limits<uint64_t>::max();
  // `needs` has all running programs. Otherwise nothing is freed for lack of a need.
  bool complete = true;
};

struct ReadyPlan {
  std::vector<ReadyNeed> make;  // new sizes of files, for ArenaStore::MakeReady
  std::vector<ArenaKey> free;   // for ArenaStore::FreeReady; do this first
};

// Returns how much memory the ready files of this user have.
uint64_t ReadyBytes(const std::vector<ArenaInfo>& arenas);

// Returns true if less than half as much memory is free, of the machine or in the control groups,
// as is ready. PlanReady leaves twice as much, so that a program whose memory varies does not cause
// work all the time.
bool IsScarce(const std::vector<ReadyNeed>& needs, const std::vector<ArenaInfo>& arenas,
              const ReadyBounds& bounds);

// Needs that come first are served first. If there is no room for all of a need, a part of it is
// made ready, because it makes the suspend faster too.
ReadyPlan PlanReady(const std::vector<ReadyNeed>& needs, const std::vector<ArenaInfo>& arenas,
                    const ReadyBounds& bounds);

}  // namespace stasis::dataplane
