// One allocation of a program on one GPU, and the place of its bytes in the arena. A list of
// ranges, in the order in which the agent exports and reimports memory, describes all data of a
// GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "base/block_hash.h"
#include "base/result.h"

namespace stasis::dataplane {

struct Range {
  uint64_t va = 0;  // address in the program; informational
  uint64_t size_bytes = 0;
  uint64_t arena_offset = 0;
  // Number of leading bytes stored in the arena; the rest is zero.
  uint64_t stored_bytes = 0;

  bool operator==(const Range&) const = default;
};

// Each range is cut into blocks of kBlockBytes; the last one may be shorter.
inline size_t BlockCount(const Range& range) {
  return (range.size_bytes + kBlockBytes - 1) / kBlockBytes;
}

// Returns the number of blocks of all ranges.
size_t BlockCount(const std::vector<Range>& ranges);

inline constexpr uint64_t kMaxRanges = 1u << 20;
inline constexpr uint64_t kMaxTotalBytes = 1ull << 44;

// Places the ranges one after another from offset 0, each fully stored. Returns the size of the
// arena that they need. Returns kInvalidArgument for sizes that no GPU can have, since they come
// from another program.
Result<uint64_t> LayOut(std::vector<Range>& ranges);

// Returns the sum of the sizes. Returns the same errors as LayOut.
Result<uint64_t> TotalBytes(const std::vector<Range>& ranges);

// Returns the number of bytes from the beginning of the arena to the end of the last range.
uint64_t UsedBytes(const std::vector<Range>& ranges);

// Returns kInvalidArgument if a range does not fit into an arena of `capacity_bytes`.
Status CheckWithin(const std::vector<Range>& ranges, uint64_t capacity_bytes);

// Returns kInvalidArgument if two ranges overlap in the arena: a save would lose one of them.
Status CheckDisjoint(const std::vector<Range>& ranges);

// Returns the size of the chunks in which an arena is prepared and copied. It is large enough to
// make the driver's cost for each registration and copy negligible (256 MiB take 5 ms to transfer),
// and small enough to overlap touching, registering and copying. Tests set $STASIS_MOVER_CHUNK_MIB.
uint64_t ChunkBytes();

// A part of a copy: `bytes` at `device_offset` in the contiguously mapped ranges, and at
// `arena_offset` in the arena.
struct Piece {
  uint64_t device_offset = 0;
  uint64_t arena_offset = 0;
  uint64_t bytes = 0;

  bool operator==(const Piece&) const = default;
};

// Appends a piece. Merges it with the last one if both are contiguous and within a chunk.
void AddPiece(std::vector<Piece>& pieces, const Piece& piece, uint64_t chunk_bytes);

// A block of a fully stored range. `index` is its number, counted through all ranges in order.
struct Block {
  uint64_t device_offset = 0;
  uint64_t arena_offset = 0;
  uint64_t bytes = 0;
  size_t index = 0;
};
// Returns all blocks in the arena's order.
std::vector<Block> BlocksOf(const std::vector<Range>& ranges);

struct Pieces {
  std::vector<Piece> stored;  // in the arena's order; none crosses a chunk boundary
  std::vector<Piece> zero;    // not in the arena; arena_offset is 0
};

// Cuts ranges into pieces to copy and pieces to clear. Adjacent pieces are merged, so that 16,384
// small allocations need as few copies as one large one. `skip` is empty or has one byte for each
// block, range by range; blocks with 1 count as not in the arena.
Pieces Cut(const std::vector<Range>& ranges, uint64_t chunk_bytes,
           const std::vector<uint8_t>& skip = {});

// The bytes of an arena from `begin` up to `end`, exclusive.
struct ArenaWindow {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};
// Returns the pieces within the window. All pieces to clear are part of the first window.
Pieces Within(Pieces pieces, const ArenaWindow& window);

}  // namespace stasis::dataplane
