// Amounts of memory as a user types them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis {

inline constexpr uint64_t kMaxSizeBytes = 1ull << 50;

// "32GiB", "32G" and "32g" are 32 * 2^30 bytes, "32GB" is 32 * 10^9, "1.5T" has a fraction, a bare
// number is bytes. 1 to 2^50 bytes; wrong usage otherwise.
Result<uint64_t> ParseSize(const std::string& text);

}  // namespace stasis
