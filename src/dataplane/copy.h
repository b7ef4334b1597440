// The copy itself, either way, at the speed of the wire: large pieces on two streams, while the
// arena's next chunks are touched and registered. Only in the mover's process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "dataplane/attached_arena.h"
#include "dataplane/gpu.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

enum class Direction { kToArena, kToDevice };

struct CopyReport {
  uint64_t copied_bytes = 0;
  uint64_t cleared_bytes = 0;  // on the device; to the arena: left out
  uint64_t cold_bytes = 0;     // of the arena, touched and registered on the way
  uint64_t elapsed_ns = 0;
  bool staged = false;
};

// Called with the bytes that have arrived so far.
using Progress = std::function<void(uint64_t)>;

// Streams, events and buffers, made at first use and kept.
class Copier {
 public:
  explicit Copier(const Gpu& gpu) : gpu_(gpu) {}

  // What is cut of ranges that lie side by side from `base` on; returns when it has arrived. To the
  // device, what is not in the arena is cleared; to the arena, it is left out.
  Result<CopyReport> Copy(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                          const Pieces& pieces, const Progress& progress);

 private:
  static constexpr int kStreams = 2;
  // Chunks under way at once: enough that both streams always have work, and little enough that
  // progress means something.
  static constexpr size_t kWindow = 4;

  // Pieces of one chunk, in the arena's order.
  struct Group {
    uint64_t chunk;
    std::vector<Piece> pieces;
    uint64_t bytes;
  };

  Status Start();
  Status Submit(Direction direction, cu::CUdeviceptr device, void* host, uint64_t bytes,
                cu::CUstream stream);
  Status CopyGroups(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const std::vector<Group>& groups, const Progress& progress, CopyReport& report);
  Status CopyStaged(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const std::vector<Group>& groups, size_t first, const Progress& progress,
                    CopyReport& report);
  Status Settle();

  const Gpu& gpu_;
  cu::CUstream streams_[kStreams] = {};
  cu::CUevent events_[kWindow] = {};
  char* buffers_[kStreams] = {};
};

}  // namespace stasis::dataplane
