// Parses memory sizes in user input.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis {

inline constexpr uint64_t kMaxSizeBytes = 1ull << 50;

// Parses a size in bytes. "32GiB", "32G" and "32g" are 32 * 2^30, "32GB" is 32 * 10^9, fractions
// such as "1.5T" are allowed, and a bare number is bytes. A size outside 1 to 2^50 bytes is a usage
// error.
Result<uint64_t> ParseSize(const std::string& text);

}  // namespace stasis
