// Our side of a mover: what it can be asked to do with one GPU's memory. Its process is started on
// demand or found where it has stayed, and ended when it passes a deadline (mover_process.h). A
// mover may die at any moment: nothing is lost by it that its caller does not hold (descriptors of
// a save) or find again (the arena).
//
// Threads: one at a time for each Mover; movers of several GPUs work in parallel.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "dataplane/arena.h"
#include "dataplane/mover_process.h"
#include "image/block_name.h"

namespace stasis::dataplane {

struct MoverInfo {
  uint64_t context_bytes = 0;  // GPU memory of the mover itself; 0 where the driver does not tell
  uint64_t free_bytes = 0;     // of the GPU, beside it
  uint64_t total_bytes = 0;
};

struct CopyOptions {
  // Save: compute the data's checksum. It costs a reading of the arena.
  bool checksum = false;
  // Save: the GPU names all blocks; after PrepareNames. Zeros are not copied.
  bool names = false;
  // Save, with names: of each block, the name of what the arena has in its place, zero where that
  // is not known; or empty. What has the same name is not copied.
  std::vector<image::Id128> known;
  // Load: a byte for each block, 1 for one that is zero whatever the arena has there; or empty.
  std::vector<uint8_t> zero;
  // Load: refuse with kDataLoss, before the copy, data of another checksum.
  std::optional<image::Id128> expected;
  // Load: how much of the arena, from its begin on, is filled by now; asked before each part with
  // what has been loaded, until that is all. It may wait, and call FreeBallast; more than `loaded`,
  // or an error, which ends the load. Empty: the arena is full.
  std::function<Result<uint64_t>(uint64_t loaded)> filled;
  // Called on the caller's thread with bytes that have arrived and bytes of all.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct CopyResult {
  // Save, if it was asked for: range by range, of blocks of image::kBlockBytes; zero for one of
  // zeros.
  std::vector<image::Id128> names;
  uint64_t zero_bytes = 0;  // in those
  uint64_t copied_bytes = 0;
  uint64_t cleared_bytes = 0;  // load: zero; save: left as it was in the arena
  uint64_t cold_bytes = 0;     // of the arena: touched and registered while copying
  double seconds = 0;          // of the copy alone
  // Save: from its begin until the first copy was on its way; what the GPU needed for the names.
  double until_first_s = 0;
  double naming_s = 0;
  bool staged = false;  // through buffers: the arena is on disk, or could not be registered
  std::optional<image::Id128> checksum;
};

struct WireSpeed {
  uint64_t bytes = 0;  // of one copy
  double to_arena_bytes_per_s = 0;
  double to_gpu_bytes_per_s = 0;
};

struct NamingSpeed {
  uint64_t bytes = 0;
  double bytes_per_s = 0;
  double prepare_s = 0;  // to load the kernel; of the first time
};

class Mover {
 public:
  explicit Mover(MoverOptions options);
  ~Mover();
  Mover(const Mover&) = delete;

  // All calls: kDeadlineExceeded when it did not answer in time and was ended; kUnavailable when it
  // died; kResourceExhausted when the GPU or the machine has no room.

  // Starts one where none runs, and makes its context. Call this while nothing is touched yet: it
  // is what may need GPU memory of its own.
  Result<MoverInfo> Start(const Deadline& deadline);
  // Of the one that runs, 0 for none.
  pid_t pid() const { return process_.pid(); }
  // Ends it and waits for that: its GPU memory is free. One that may stay lets go of all that is
  // ours, and stays.
  Status Stop();

  // Begins work with an arena, starting a mover where none runs. The same file again, not grown:
  // what is registered of it stays so.
  Status Attach(const Arena& arena, const Deadline& deadline);
  Status Detach(const Deadline& deadline);
  // Touches and registers that much of the arena ahead of time.
  Status Warm(uint64_t bytes, const Deadline& deadline);
  // Best of five copies each way between the arena and memory of its own; the arena keeps its
  // bytes.
  Result<WireSpeed> Measure(uint64_t bytes, const Deadline& deadline);

  // Names of blocks can be computed with this key from here on, until the end. It is what may need
  // GPU memory, so it is called while nothing is touched yet. kUnimplemented where the kernel
  // cannot be loaded: names are for the processors then.
  Status PrepareNames(const image::BlockSecret& secret, const Deadline& deadline);
  // Best of five, of random bytes, with a random key; needs that much GPU memory for the time.
  Result<NamingSpeed> MeasureNaming(uint64_t bytes, const Deadline& deadline);

  // Copies the memory behind `fds`, one for each range, into the attached arena. The descriptors
  // stay the caller's. Afterwards the mover holds the memory too, until Release(). When it fails
  // nothing is held and the GPU's memory is as it was; kInvalidArgument says that a descriptor or
  // size from the program is not what it says.
  Result<CopyResult> Save(const std::vector<Range>& ranges, std::span<const int> fds,
                          const CopyOptions& options, const Deadline& deadline);

  // Creates all memory, plus a ballast of that size, or nothing. kResourceExhausted says what is
  // needed and what is free.
  Status PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                     const Deadline& deadline);
  Status FreeBallast(const Deadline& deadline);
  // Copies the attached arena into that memory; what is not in the arena is zero. When it fails,
  // all of it is released.
  Result<CopyResult> Load(const CopyOptions& options, const Deadline& deadline);
  // Descriptors of that memory, in order.
  Result<std::vector<UniqueFd>> Export(const Deadline& deadline);

  // Lets go of all memory of a save or load: its end, or how it is called off. Success when no
  // mover runs. The arena stays attached.
  Status Release(const Deadline& deadline);

 private:
  Status SendRanges(wire::Op op, const std::vector<Range>& ranges, std::span<const int> fds,
                    const Deadline& deadline);
  // `file`: as the request's flags want one, or -1. `before_bytes`: of parts before this one.
  Result<CopyResult> Copy(const wire::Request& request, int file, const CopyOptions& options,
                          const Deadline& deadline, uint64_t before_bytes = 0);
  Result<CopyResult> SaveImported(const std::vector<Range>& ranges, const CopyOptions& options,
                                  const Deadline& deadline);
  Status CheckAllCopied(const CopyResult& result) const;

  MoverProcess process_;
  size_t count_ = 0;  // ranges of the load that is prepared
  uint64_t total_bytes_ = 0;
  uint64_t arena_bytes_ = 0;  // of them, what is in the arena: up to there
};

}  // namespace stasis::dataplane
