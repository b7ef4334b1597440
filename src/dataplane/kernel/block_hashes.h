// Data shared by the mover and the kernel in block_hashes.cu. Both compilers read this file.
#pragma once

#include <stdint.h>

namespace stasis::dataplane {

// A thread block hashes one block of data; each of its warps handles every kHashWarps-th piece.
inline constexpr unsigned kHashWarps = 4;
inline constexpr unsigned kHashThreads = 32 * kHashWarps;
inline constexpr unsigned kHashPieceWords = 512;

// The numbers of a key (base/block_hash.h), in limbs of 26 bits. The product of a limb and a
// 32-bit half of a data word is below 2^58, so 64 of them add up in 64 bits without overflow.
inline constexpr unsigned kHashLimbs = 5;
inline constexpr unsigned kHashLimbBits = 26;

struct HashKey {
  uint32_t limbs[kHashLimbs][kHashPieceWords];
  uint64_t powers[kHashWarps + 1][2];  // r^0 ... r^kHashWarps, low half first
};

// One block of data: up to 2 MiB at an address that is a multiple of 16.
struct HashTask {
  uint64_t address;
  uint64_t bytes;
};

// Low half first, like Id128; zero for a zero block.
struct HashResult {
  uint64_t low;
  uint64_t high;
};

}  // namespace stasis::dataplane
