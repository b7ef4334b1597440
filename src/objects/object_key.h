// Keys of objects, which are valid and mean the same in every store.
#pragma once

#include <string_view>

#include "base/result.h"
#include "objects/object_store.h"

namespace stasis::objects {

inline constexpr size_t kMaxKeyBytes = 512;

// A key has 1 to kMaxKeyBytes of [A-Za-z0-9._/-] in components between slashes. No component is
// empty, "." or "..", or longer than 255 bytes. Returns kInvalidArgument otherwise.
Status CheckKey(std::string_view key);

// Checks the arguments of ObjectStore::List(). A prefix is empty or the beginning of a valid key:
// it may end in a slash or within a component. `start_after` is empty or a key.
Status CheckListing(std::string_view prefix, std::string_view start_after, uint32_t limit);

}  // namespace stasis::objects
