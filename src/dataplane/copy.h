// The copy itself, either way, at the speed of the wire: large pieces on two streams, while the
// arena's next chunks are touched and registered. Only in the mover's process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
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
  uint64_t until_first_ns = 0;  // until the first copy was on its way
  bool staged = false;
};

// Pieces of one chunk, in the arena's order.
struct Group {
  uint64_t chunk = 0;
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
};
// The next one, in the arena's order; absent when there is none any more. May wait until it is
// known.
using NextGroup = std::function<Result<std::optional<Group>>()>;

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
  // The same to the arena, of pieces that become known while others are copied.
  Result<CopyReport> Save(AttachedArena& arena, cu::CUdeviceptr base, const NextGroup& next,
                          const Progress& progress);

 private:
  static constexpr int kStreams = 2;
  // Chunks under way at once: enough that both streams always have work, and little enough that
  // progress means something.
  static constexpr size_t kWindow = 4;

  Status Start();
  Status Submit(Direction direction, cu::CUdeviceptr device, void* host, uint64_t bytes,
                cu::CUstream stream);
  // `begin` may submit something beforehand.
  Result<CopyReport> Run(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                         const std::function<Status()>& begin, const NextGroup& next,
                         const Progress& progress);
  Status CopyGroups(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const NextGroup& next, const Progress& progress, CopyReport& report);
  Status CopyStaged(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const std::deque<Group>& groups, const Progress& progress, CopyReport& report);
  Status Settle();

  uint64_t ElapsedNs() const { return static_cast<uint64_t>(watch_.Seconds() * 1e9); }

  const Gpu& gpu_;
  Stopwatch watch_;  // of the copy that goes on
  cu::CUstream streams_[kStreams] = {};
  cu::CUevent events_[kWindow] = {};
  char* buffers_[kStreams] = {};
};

}  // namespace stasis::dataplane
