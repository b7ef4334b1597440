// Hashes the content of an arena with processors.
#pragma once

#include <vector>

#include "base/block_hash.h"
#include "base/deadline.h"
#include "dataplane/arena.h"

namespace stasis::dataplane {

// Replaces hashes[i] by the hash of the bytes in the arena of block i of record().ranges, for each
// i with wanted[i]. All ranges must be fully stored. Uses all processors. Returns kDeadlineExceeded
// if the deadline is over first.
Status HashBlocks(const Arena& arena, const BlockKey& key, const std::vector<bool>& wanted,
                  std::vector<Id128>& hashes, const Deadline& deadline);

}  // namespace stasis::dataplane
