// What the mover and the kernel in block_names.cu say to each other. Read by both compilers.
#pragma once

#include <stdint.h>

namespace stasis::dataplane {

// A thread block names one block of data; each warp of it takes every kNameWarps-th piece.
inline constexpr unsigned kNameWarps = 4;
inline constexpr unsigned kNameThreads = 32 * kNameWarps;
inline constexpr unsigned kNamePieceWords = 512;

// The numbers of a key (image/block_name.h), cut in limbs of 26 bits: the products of a data word's
// halves, 32 bits, with a limb are below 2^58, so that 64 of them add up in 64 bits without a
// carry.
inline constexpr unsigned kNameLimbs = 5;
inline constexpr unsigned kNameLimbBits = 26;

struct NameKey {
  uint32_t limbs[kNameLimbs][kNamePieceWords];
  uint64_t powers[kNameWarps + 1][2];  // r^0 ... r^kNameWarps, low half first
};

// One block of data: 1 to 2 MiB bytes from an address that is a multiple of 16.
struct NameTask {
  uint64_t address;
  uint64_t bytes;
};

// Low half first, as an Id128 has it; zero for a block of zeros.
struct NameResult {
  uint64_t low;
  uint64_t high;
};

}  // namespace stasis::dataplane
