// Computes the disk space that a user's images occupy, and checks it against the limit.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::store {

// Returns the disk space, in bytes, of all files of this user below `store`, including images that
// are being written. A file that several images share counts once. Returns 0 if there is no such
// folder.
uint64_t OurBytes(const std::string& store);

// Returns kResourceExhausted if OurBytes is `most` or more (limits.images; 0 for no limit).
Status CheckImageLimit(const std::string& store, uint64_t most);

}  // namespace stasis::store
