// Names of hidden folders in a store that several parts of Stasis must know.
#pragma once

#include <string_view>

namespace stasis {

// A folder for GPU data that does not fit into host memory (dataplane/arena_place.h). It is no part
// of an image.
inline constexpr std::string_view kOverflowPrefix = ".stasis-spill-";

}  // namespace stasis
