#include "dataplane/range.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <string>
#include <utility>

namespace stasis::dataplane {

uint64_t ChunkBytes() {
  const char* text = std::getenv("STASIS_MOVER_CHUNK_MIB");
  const uint64_t mib = text == nullptr ? 256 : std::strtoull(text, nullptr, 10);
  return std::clamp<uint64_t>(mib, 2, 4096) << 20;
}

Result<uint64_t> TotalBytes(const std::vector<Range>& ranges) {
  if (ranges.size() > kMaxRanges) {
    return Fail(Code::kInvalidArgument,
                std::to_string(ranges.size()) + " allocations are more than the limit");
  }
  uint64_t total = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const uint64_t size = ranges[i].size_bytes;
    if (size == 0 || size > kMaxTotalBytes - total) {
      return Fail(Code::kInvalidArgument,
                  "allocation " + std::to_string(i) + " has an invalid size");
    }
    total += size;
  }
  return total;
}

Result<uint64_t> LayOut(std::vector<Range>& ranges) {
  STASIS_ASSIGN(uint64_t total, TotalBytes(ranges));
  uint64_t at = 0;
  for (Range& range : ranges) {
    range.arena_offset = at;
    range.stored_bytes = range.size_bytes;
    at += range.size_bytes;
  }
  return total;
}

uint64_t UsedBytes(const std::vector<Range>& ranges) {
  uint64_t used = 0;
  for (const Range& r : ranges) used = std::max(used, r.arena_offset + r.stored_bytes);
  return used;
}

Status CheckWithin(const std::vector<Range>& ranges, uint64_t capacity_bytes) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& r = ranges[i];
    if (r.stored_bytes <= r.size_bytes && r.arena_offset <= capacity_bytes &&
        r.stored_bytes <= capacity_bytes - r.arena_offset) {
      continue;
    }
    return Fail(Code::kInvalidArgument,
                "allocation " + std::to_string(i) + " lies outside of the arena");
  }
  return {};
}

Status CheckDisjoint(const std::vector<Range>& ranges) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const Range& r : ranges) {
    if (r.stored_bytes > 0) places.emplace_back(r.arena_offset, r.stored_bytes);
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first - places[i - 1].first < places[i - 1].second) {
      return Fail(Code::kInvalidArgument, "two allocations overlap in the arena");
    }
  }
  return {};
}

namespace {

// Only the device offset counts, since the piece is not in the arena.
void AddZero(std::vector<Piece>& pieces, const Piece& piece) {
  if (!pieces.empty() && pieces.back().device_offset + pieces.back().bytes == piece.device_offset) {
    pieces.back().bytes += piece.bytes;
  } else {
    pieces.push_back(piece);
  }
}

}  // namespace

void AddPiece(std::vector<Piece>& pieces, const Piece& piece, uint64_t chunk_bytes) {
  if (!pieces.empty() && piece.arena_offset % chunk_bytes != 0) {
    Piece& last = pieces.back();
    if (last.device_offset + last.bytes == piece.device_offset &&
        last.arena_offset + last.bytes == piece.arena_offset) {
      last.bytes += piece.bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

std::vector<Block> BlocksOf(const std::vector<Range>& ranges) {
  std::vector<Block> blocks;
  uint64_t device = 0;
  for (const Range& range : ranges) {
    for (uint64_t done = 0; done < range.size_bytes; done += kBlockBytes) {
      blocks.push_back({device + done, range.arena_offset + done,
                        std::min<uint64_t>(kBlockBytes, range.size_bytes - done), blocks.size()});
    }
    device += range.size_bytes;
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.arena_offset < b.arena_offset; });
  return blocks;
}

size_t BlockCount(const std::vector<Range>& ranges) {
  size_t count = 0;
  for (const Range& range : ranges) count += BlockCount(range);
  return count;
}

Pieces Cut(const std::vector<Range>& ranges, uint64_t chunk_bytes,
           const std::vector<uint8_t>& skip) {
  constexpr uint64_t kBlock = kBlockBytes;
  assert(skip.empty() || skip.size() == BlockCount(ranges));
  Pieces pieces;
  uint64_t device = 0;
  size_t first_block = 0;
  for (const Range& range : ranges) {
    for (uint64_t done = 0; done < range.stored_bytes;) {
      const uint64_t at = range.arena_offset + done;
      uint64_t part = std::min(range.stored_bytes - done, chunk_bytes - at % chunk_bytes);
      if (!skip.empty()) part = std::min(part, kBlock - done % kBlock);
      if (!skip.empty() && skip[first_block + done / kBlock] != 0) {
        AddZero(pieces.zero, {device + done, 0, part});
      } else {
        AddPiece(pieces.stored, {device + done, at, part}, chunk_bytes);
      }
      done += part;
    }
    first_block += BlockCount(range);
    if (range.stored_bytes < range.size_bytes) {
      AddZero(pieces.zero, {device + range.stored_bytes, 0, range.size_bytes - range.stored_bytes});
    }
    device += range.size_bytes;
  }
  std::stable_sort(pieces.stored.begin(), pieces.stored.end(),
                   [](const Piece& a, const Piece& b) { return a.arena_offset < b.arena_offset; });
  return pieces;
}

Pieces Within(Pieces pieces, const ArenaWindow& window) {
  Pieces within;
  if (window.begin == 0) within.zero = std::move(pieces.zero);
  for (const Piece& piece : pieces.stored) {
    const uint64_t begin = std::max(piece.arena_offset, window.begin);
    const uint64_t end = std::min(piece.arena_offset + piece.bytes, window.end);
    if (begin >= end) continue;
    within.stored.push_back(
        {piece.device_offset + (begin - piece.arena_offset), begin, end - begin});
  }
  return within;
}

}  // namespace stasis::dataplane
