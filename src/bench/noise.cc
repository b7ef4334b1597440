#include "bench/noise.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

#include "base/parallel.h"

namespace stasis::bench {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kPartBytes = 16u << 20;  // size of one work item

// The output function of SplitMix64 (Steele, Lea and Flood 2014), which can compute each word of
// the sequence independently.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// Calls part(first, end) for the words of each part, on all processors.
template <class Part>
void ForEachPart(uint64_t bytes, const Part& part) {
  assert(bytes % kWordBytes == 0);
  const uint64_t words = bytes / kWordBytes, part_words = kPartBytes / kWordBytes;
  const std::atomic<uint64_t> done{0};
  const auto work = [&](size_t i) -> Status {
    part(i * part_words, std::min((i + 1) * part_words, words));
    return {};
  };
  (void)ForEachWithProgress((words + part_words - 1) / part_words, work, done, 0, nullptr);
}

}  // namespace

void FillNoise(std::span<char> bytes, uint64_t seed) {
  ForEachPart(bytes.size(), [&](uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      const uint64_t word = WordAt(seed, i);
      std::memcpy(bytes.data() + i * kWordBytes, &word, kWordBytes);
    }
  });
}

bool IsNoise(std::span<const char> bytes, uint64_t seed) {
  std::atomic<bool> same{true};
  ForEachPart(bytes.size(), [&](uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      const uint64_t word = WordAt(seed, i);
      if (std::memcmp(bytes.data() + i * kWordBytes, &word, kWordBytes) == 0) continue;
      same = false;
      return;
    }
  });
  return same;
}

}  // namespace stasis::bench
