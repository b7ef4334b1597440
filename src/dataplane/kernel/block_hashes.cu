// poly127-4k (base/block_hash.h) on the GPU: hashes blocks and detects zero blocks at the speed of
// GPU memory. Built as C++ for softgpu, and by clang for real GPUs (`./run ptx`).
//
// A warp handles a piece of 4096 bytes: 16 words per thread, whose keys stay in registers. The
// products add up without carries (block_hashes.h), and each thread keeps the polynomial of its own
// part of the pieces. Because everything is linear, the sum over all threads is the polynomial of
// the block.
#include "dataplane/kernel/block_hashes.h"

#include <softgpu/kernel.h>

using stasis::dataplane::HashKey;
using stasis::dataplane::HashResult;
using stasis::dataplane::HashTask;
using stasis::dataplane::kHashLimbs;
using stasis::dataplane::kHashThreads;
using stasis::dataplane::kHashWarps;

#if defined(__CUDA__)
#define STASIS_GLOBAL __attribute__((address_space(1)))
#define STASIS_UNROLL _Pragma("unroll")
#else
#define STASIS_GLOBAL
#define STASIS_UNROLL
#endif

namespace {

typedef unsigned __int128 U128;
// 16 bytes, loaded at once.
typedef uint64_t Pair __attribute__((vector_size(16)));

constexpr unsigned kLoads = 8;  // per thread and piece: 4096 / 32 / 16
constexpr unsigned kPieceBytes = 4096;

__device__ inline U128 P() { return ((U128)1 << 127) - 1; }

// sum + a * b. Written as assembly because compilers move the widening out of the loop. The keys
// then take twice the registers, and each multiplication has 64-bit operands.
__device__ inline uint64_t MultiplyAdd(uint64_t sum, uint32_t a, uint32_t b) {
#if defined(__CUDA__)
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
  return sum;
#else
  return sum + (uint64_t)a * b;
#endif
}

// x mod p, possibly plus p; at most 2^127.
__device__ inline U128 Lazy(U128 x) { return (x & P()) + (x >> 127); }

// x mod p.
__device__ inline U128 Fold(U128 x) {
  x = Lazy(x);
  return x >= P() ? x - P() : x;
}

// Requires a <= 2^127 and b < p; the result is at most 2^127. No carry is lost: of the two terms of
// the last sum only the first can be 2^127.
__device__ inline U128 Multiply(U128 a, U128 b) {
  const uint64_t a0 = (uint64_t)a, a1 = (uint64_t)(a >> 64);
  const uint64_t b0 = (uint64_t)b, b1 = (uint64_t)(b >> 64);
  const U128 low = (U128)a0 * b0;
  const U128 middle = (U128)a0 * b1 + (U128)a1 * b0;
  const U128 sum = low + (middle << 64);
  const U128 high = (U128)a1 * b1 + (middle >> 64) + (sum < low ? 1 : 0);
  return Lazy(Lazy(sum) + Lazy(high << 1));  // 2^128 mod p is 2
}

// The lowest `count` bits of x shifted up by 127 - count; the bits above wrap around to bit 0.
__device__ inline U128 Upper(uint64_t x, unsigned count) {
  return (U128)(x & (((uint64_t)1 << count) - 1)) << (127 - count);
}

// Returns the sum of a[j]*2^(26j) + b[j]*2^(26j+32) mod p, below 2^127. The addends must be below
// 2^62.
__device__ inline U128 Combine(const uint64_t* a, const uint64_t* b) {
  U128 x = (U128)a[0] + ((U128)a[1] << 26) + ((U128)a[2] << 52) + ((U128)b[0] << 32) +
           ((U128)b[1] << 58) + ((U128)b[4] << 9);
  x += (a[3] >> 49) + (a[4] >> 23) + (b[2] >> 43) + (b[3] >> 17);
  x = Lazy(x + Upper(a[3], 49));
  x = Lazy(x + Upper(a[4], 23));
  x = Lazy(x + Upper(b[2], 43));
  return Lazy(x + Upper(b[3], 17));
}

// Loads 16 bytes at `offset` of a block, padded with zeros beyond its end.
__device__ inline Pair LoadWithin(uint64_t address, uint64_t offset, uint64_t bytes) {
  uint64_t low = 0, high = 0;
  for (uint64_t i = 0; i < 16 && offset + i < bytes; ++i) {
    const uint64_t byte = *(const STASIS_GLOBAL uint8_t*)(address + offset + i);
    (i < 8 ? low : high) |= byte << (i % 8 * 8);
  }
  return Pair{low, high};
}

}  // namespace

// Three thread blocks per multiprocessor, so that each thread can have 168 registers.
extern "C" __global__ void __launch_bounds__(128, 3)
    stasis_block_hashes(const HashTask* tasks, const HashKey* key, HashResult* results);

STASIS_KERNEL(stasis_block_hashes,
              (const HashTask* tasks, const HashKey* key, HashResult* results)) {
  __shared__ uint64_t low[kHashThreads], high[kHashThreads], seen[kHashThreads];
  const unsigned self = threadIdx.x;
  const unsigned warp = self / 32, lane = self % 32;
  const uint64_t address = tasks[blockIdx.x].address;
  const uint64_t bytes = tasks[blockIdx.x].bytes;
  const unsigned pieces = (unsigned)((bytes + kPieceBytes - 1) / kPieceBytes);
  const unsigned whole = (unsigned)(bytes / kPieceBytes);

  uint32_t keys[kHashLimbs][2 * kLoads];
  STASIS_UNROLL
  for (unsigned j = 0; j < kHashLimbs; ++j) {
    STASIS_UNROLL
    for (unsigned i = 0; i < 2 * kLoads; ++i) {
      keys[j][i] = key->limbs[j][i / 2 * 64 + lane * 2 + i % 2];
    }
  }
  const U128 step = ((U128)key->powers[kHashWarps][1] << 64) | key->powers[kHashWarps][0];

  // The length is treated as the term before the first piece.
  U128 sum = self == 32 * (kHashWarps - 1) ? bytes : 0;
  uint64_t any = 0;
  for (unsigned piece = warp; piece < pieces; piece += kHashWarps) {
    const uint64_t offset = (uint64_t)piece * kPieceBytes + lane * 16;
    Pair data[kLoads];
    if (piece < whole) {
      STASIS_UNROLL
      for (unsigned i = 0; i < kLoads; ++i) {
        data[i] = *(const STASIS_GLOBAL Pair*)(address + offset + i * 512);
      }
    } else {
      STASIS_UNROLL
      for (unsigned i = 0; i < kLoads; ++i) {
        data[i] = LoadWithin(address, offset + i * 512, bytes);
      }
    }
    uint64_t a[kHashLimbs] = {}, b[kHashLimbs] = {};
    STASIS_UNROLL
    for (unsigned i = 0; i < 2 * kLoads; ++i) {
      const uint64_t word = data[i / 2][i % 2];
      any |= word;
      STASIS_UNROLL
      for (unsigned j = 0; j < kHashLimbs; ++j) {
        a[j] = MultiplyAdd(a[j], (uint32_t)word, keys[j][i]);
        b[j] = MultiplyAdd(b[j], (uint32_t)(word >> 32), keys[j][i]);
      }
    }
    sum = Lazy(Multiply(sum, step) + Combine(a, b));
  }

  // The number of pieces after this warp's last one, by which r must still be multiplied.
  const unsigned after = (pieces + kHashWarps - 1 - warp) % kHashWarps;
  const unsigned power = pieces > warp ? after : warp == kHashWarps - 1 ? pieces : 0;
  const U128 weight = ((U128)key->powers[power][1] << 64) | key->powers[power][0];
  sum = Multiply(sum, weight);
  low[self] = (uint64_t)sum;
  high[self] = (uint64_t)(sum >> 64);
  seen[self] = any;
  for (unsigned half = kHashThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (self < half) {
      const U128 other = ((U128)high[self + half] << 64) | low[self + half];
      sum = Fold(Fold(sum) + Fold(other));
      low[self] = (uint64_t)sum;
      high[self] = (uint64_t)(sum >> 64);
      any |= seen[self + half];
      seen[self] = any;
    }
  }
  if (self == 0) {
    const bool zero = any == 0;
    results[blockIdx.x].low = zero ? 0 : (uint64_t)sum;
    results[blockIdx.x].high = zero ? 0 : (uint64_t)(sum >> 64) | ((uint64_t)1 << 63);
  }
}
