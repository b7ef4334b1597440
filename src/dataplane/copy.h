// Copies between GPU and arena in either direction, at the speed of the bus: large pieces on two
// streams, while later chunks of the arena are touched and registered. Runs only in the mover's
// process.
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
  uint64_t cleared_bytes = 0;  // to the device: cleared; to the arena: skipped
  uint64_t cold_bytes = 0;     // bytes of the arena touched and registered during the copy
  uint64_t elapsed_ns = 0;
  uint64_t until_first_ns = 0;  // time until the first copy was submitted
  bool staged = false;
};

// The pieces of one chunk, in the arena's order.
struct Group {
  uint64_t chunk = 0;
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
};
// Returns the next group in the arena's order, or nothing at the end. May block while the next
// group is still being determined.
using NextGroup = std::function<Result<std::optional<Group>>()>;

// Called with the number of bytes copied so far.
using Progress = std::function<void(uint64_t)>;

// Streams, events and buffers, created at first use and then kept.
class Copier {
 public:
  explicit Copier(const Gpu& gpu) : gpu_(gpu) {}

  // Copies pieces of ranges that are mapped contiguously at `base`; returns when all bytes have
  // arrived. Ranges that are not in the arena are cleared on the device, or skipped in the other
  // direction.
  Result<CopyReport> Copy(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                          const Pieces& pieces, const Progress& progress);
  // Copies to the arena while the pieces are still being determined.
  Result<CopyReport> Save(AttachedArena& arena, cu::CUdeviceptr base, const NextGroup& next,
                          const Progress& progress);

 private:
  static constexpr int kStreams = 2;
  // Number of chunks in flight: enough to keep both streams busy, and few enough for useful
  // progress reports.
  static constexpr size_t kWindow = 4;

  Status Start();
  Status Submit(Direction direction, cu::CUdeviceptr device, void* host, uint64_t bytes,
                cu::CUstream stream);
  // Calls `begin`, which may submit work of its own (a load clears zero blocks), and then copies
  // the groups.
  Result<CopyReport> Run(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                         const std::function<Status()>& begin, const NextGroup& next,
                         const Progress& progress);
  Status CopyGroups(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const NextGroup& next, const Progress& progress, CopyReport& report);
  Status CopyStaged(Direction direction, AttachedArena& arena, cu::CUdeviceptr base,
                    const std::deque<Group>& groups, const Progress& progress, CopyReport& report);
  Status WaitForCopies();

  uint64_t ElapsedNs() const { return static_cast<uint64_t>(watch_.Seconds() * 1e9); }

  const Gpu& gpu_;
  Stopwatch watch_;  // started with the current copy
  cu::CUstream streams_[kStreams] = {};
  cu::CUevent events_[kWindow] = {};
  char* buffers_[kStreams] = {};
};

}  // namespace stasis::dataplane
