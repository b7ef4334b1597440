// Hashes the content of an arena on the CPU.
#pragma once

#include <functional>
#include <vector>

#include "base/block_hash.h"
#include "dataplane/arena.h"

namespace stasis::dataplane {

// Replaces hashes[i] by the hash of the bytes in the arena of block i of record().ranges, for each
// i with wanted[i]. All ranges must be fully stored. Uses all processors. Stops if `go_on` returns
// false and returns kCancelled; after an error, hashes of blocks that were not reached are zero.
Status HashBlocks(const Arena& arena, const BlockKey& key, const std::vector<bool>& wanted,
                  std::vector<Id128>& hashes, const std::function<bool()>& go_on);

}  // namespace stasis::dataplane
