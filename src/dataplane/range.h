// One allocation of a program on one GPU, and where its bytes lie in the arena. A list of them, in
// the order in which the agent exports and takes back its memory, describes all of a GPU's data.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "image/limits.h"

namespace stasis::dataplane {

struct Range {
  uint64_t va = 0;  // in the program; only recorded
  uint64_t size_bytes = 0;
  uint64_t arena_offset = 0;
  // The first so many bytes are in the arena; the others are zero.
  uint64_t stored_bytes = 0;

  bool operator==(const Range&) const = default;
};

// Each range is cut into blocks of image::kBlockBytes, of which the last may be shorter.
inline size_t BlockCount(const Range& range) {
  return (range.size_bytes + image::kBlockBytes - 1) / image::kBlockBytes;
}

size_t BlockCount(const std::vector<Range>& ranges);

inline constexpr uint64_t kMaxRanges = 1u << 20;
inline constexpr uint64_t kMaxTotalBytes = 1ull << 44;

// One after another from offset 0, each stored whole. Returns the bytes that the arena needs.
// kInvalidArgument for sizes that no GPU can have: they come from another program.
Result<uint64_t> LayOut(std::vector<Range>& ranges);

// Sum of the sizes; the same refusals.
Result<uint64_t> TotalBytes(const std::vector<Range>& ranges);

// kInvalidArgument when a range does not fit into an arena of `capacity_bytes`.
Status CheckWithin(const std::vector<Range>& ranges, uint64_t capacity_bytes);

// kInvalidArgument when two share bytes of the arena: a save would lose one of them.
Status CheckDisjoint(const std::vector<Range>& ranges);

// Large enough that the driver's cost for each registration and copy is lost in it (256 MiB are
// 5 ms on the wire), small enough that touching, registering and copying overlap.
// $STASIS_MOVER_CHUNK_MIB is for tests.
uint64_t ChunkBytes();

// A part of a copy: `bytes` at `device_offset` of the ranges laid side by side in one address
// range, and at `arena_offset`.
struct Piece {
  uint64_t device_offset = 0;
  uint64_t arena_offset = 0;
  uint64_t bytes = 0;

  bool operator==(const Piece&) const = default;
};

// Appends, joined with the last one where that makes one copy of two within a chunk.
void AddPiece(std::vector<Piece>& pieces, const Piece& piece, uint64_t chunk_bytes);

// A block of a range that is stored whole. `index`: range by range.
struct Block {
  uint64_t device_offset = 0;
  uint64_t arena_offset = 0;
  uint64_t bytes = 0;
  size_t index = 0;
};
// All of them, in order of the arena.
std::vector<Block> BlocksOf(const std::vector<Range>& ranges);

struct Pieces {
  std::vector<Piece> stored;  // in order of the arena; none crosses a multiple of the chunk
  std::vector<Piece> zero;    // not in the arena; arena_offset is 0
};

// What must be copied and what must be cleared; neighbours are joined, so that 16,384 small
// allocations become as few copies as one large one. `skip` is empty or has a byte for each block,
// range by range: those with 1 count as not in the arena.
Pieces Cut(const std::vector<Range>& ranges, uint64_t chunk_bytes,
           const std::vector<uint8_t>& skip = {});

// The bytes of an arena from `begin` to before `end`.
struct ArenaWindow {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};
// What lies within it. What is not in the arena is cleared with its first byte.
Pieces Within(Pieces pieces, const ArenaWindow& window);

}  // namespace stasis::dataplane
