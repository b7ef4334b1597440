// How much of a folder of images is a user's.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::store {

// Bytes on the disk of all files below `store` that are ours, images that are being written too. A
// file that several images share counts once. 0 when there is no such folder.
uint64_t OurBytes(const std::string& store);

// They are fewer than `most` (limits.images; 0: any number): kResourceExhausted.
Status CheckImageLimit(const std::string& store, uint64_t most);

}  // namespace stasis::store
