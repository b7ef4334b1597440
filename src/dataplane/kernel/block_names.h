// Data shared by the mover and the kernel in block_names.cu. Both compilers read this file.
#pragma once

#include <stdint.h>

namespace stasis::dataplane {

// A thread block names one block of data; each of its warps handles every kNameWarps-th piece.
inline constexpr unsigned kNameWarps = 4;
inline constexpr unsigned kNameThreads = 32 * kNameWarps;
inline constexpr unsigned kNamePieceWords = 512;

// The numbers of a key (image/block_name.h), in limbs of 26 bits. The product of a limb and a
// 32-bit half of a data word is below 2^58, so 64 of them add up in 64 bits without overflow.
inline constexpr unsigned kNameLimbs = 5;
inline constexpr unsigned kNameLimbBits = 26;

struct NameKey {
  uint32_t limbs[kNameLimbs][kNamePieceWords];
  uint64_t powers[kNameWarps + 1][2];  // r^0 ... r^kNameWarps, low half first
};

// One block of data: up to 2 MiB at an address that is a multiple of 16.
struct NameTask {
  uint64_t address;
  uint64_t bytes;
};

// Low half first, like Id128; zero for a zero block.
struct NameResult {
  uint64_t low;
  uint64_t high;
};

}  // namespace stasis::dataplane
