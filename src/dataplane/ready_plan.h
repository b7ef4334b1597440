// Decides for which running processes host memory is made ready before their next suspend
// (arena.reserve). A pure function.
//
// The memory of the ready files stays below two bounds: `most_bytes`, and so much that at least as
// much memory stays free as is ready for all users together.
#pragma once

#include <cstdint>
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
  uint64_t free_bytes = 0;          // memory that arenas can still allocate
  uint64_t others_ready_bytes = 0;  // ready for programs of other users
  // `needs` has all running programs. Otherwise nothing is freed for lack of a need.
  bool complete = true;
};

struct ReadyPlan {
  std::vector<ReadyNeed> make;  // new sizes of files, for ArenaStore::MakeReady
  std::vector<ArenaKey> free;   // for ArenaStore::FreeReady; do this first
};

// Returns how much memory the ready files of this user have.
uint64_t ReadyBytes(const std::vector<ArenaInfo>& arenas);

// Needs that come first are served first. If there is no room for all of a need, a part of it is
// made ready, because it makes the suspend faster too.
ReadyPlan PlanReady(const std::vector<ReadyNeed>& needs, const std::vector<ArenaInfo>& arenas,
                    const ReadyBounds& bounds);

}  // namespace stasis::dataplane
