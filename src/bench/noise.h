// Random bytes that can be recognised later: neither compression nor deduplication saves any.
#pragma once

#include <cstdint>
#include <span>

namespace stasis::bench {

// Fills `bytes`, whose size must be a multiple of 8, on all processors. Other seeds give other
// words.
void FillNoise(std::span<char> bytes, uint64_t seed);
// Returns whether FillNoise with this seed has written exactly these bytes.
bool IsNoise(std::span<const char> bytes, uint64_t seed);

}  // namespace stasis::bench
