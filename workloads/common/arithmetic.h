// Arithmetic shared by kernels and checks. It uses integers only, so that a CPU, softgpu and every
// GPU get the same results. Included by kernel files and host files.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define WORKLOAD_BOTH __host__ __device__ inline
#else
#define WORKLOAD_BOTH inline
#endif

namespace workloads {

// The finaliser of splitmix64: every input bit affects every output bit.
WORKLOAD_BOTH uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 31;
  return x;
}

// Returns word `index` of the pseudo-random stream `seed`. Never zero, so that cleared memory is
// never mistaken for data.
WORKLOAD_BOTH uint64_t RandomWord(uint64_t seed, uint64_t index) {
  return Mix64(seed + (index + 1) * 0x9e3779b97f4a7c15ull) | 1;
}

WORKLOAD_BOTH uint32_t RandomWord32(uint64_t seed, uint64_t index) {
  return static_cast<uint32_t>(RandomWord(seed, index) >> 32) | 1;
}

// Returns the value of one element after a round. Depends on a neighbour and the index, so that
// swapped, shifted or stale blocks change the checksum.
WORKLOAD_BOTH uint32_t Step(uint32_t own, uint32_t other, uint32_t index, uint32_t round) {
  uint32_t x = own * 1664525u + other + index * 2654435761u + round;
  x ^= x >> 15;
  return x | 1;
}

// Returns a word's part of a checksum. The parts are added, so the order of the threads does not
// matter.
WORKLOAD_BOTH uint64_t ChecksumShare(uint64_t word, uint64_t index) {
  return Mix64(word ^ (index * 0xd6e8feb86659fd93ull));
}

}  // namespace workloads
