// Pseudorandom bytes that can be verified later. Neither compression nor deduplication can shrink
// them.
#pragma once

#include <cstdint>
#include <span>

namespace stasis::bench {

// Fills `bytes`, whose size must be a multiple of 8, on all processors. Different seeds give
// different words.
void FillNoise(std::span<char> bytes, uint64_t seed);
// Returns true if the bytes are exactly those that FillNoise writes with this seed.
bool IsNoise(std::span<const char> bytes, uint64_t seed);

}  // namespace stasis::bench
