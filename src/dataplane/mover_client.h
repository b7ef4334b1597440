// Client of a mover: operations on the memory of one GPU. The mover process is started on demand,
// or a resident one is used; it is killed if it exceeds a deadline (mover_process.h). A mover may
// die at any moment without loss of data: the caller still has the descriptors of a save, and the
// arena is a file.
//
// A Mover must be used by one thread at a time. Movers of several GPUs work in parallel.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/block_name.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "dataplane/arena.h"
#include "dataplane/mover_process.h"

namespace stasis::dataplane {

struct MoverInfo {
  uint64_t context_bytes = 0;  // GPU memory of the mover's context; 0 if unknown
  uint64_t free_bytes = 0;     // free memory of the GPU with the mover running
  uint64_t total_bytes = 0;
};

struct CopyOptions {
  // Save: compute the checksum of the data, which takes one read of the arena.
  bool checksum = false;
  // Save: the GPU names all blocks (after PrepareNames). Zero blocks are not copied.
  bool names = false;
  // Save with names: the name of the data at each block's place in the arena, zero if unknown; or
  // empty. Blocks whose name is unchanged are not copied.
  std::vector<Id128> known;
  // Load: one byte for each block, 1 for a zero block whatever the arena contains; or empty.
  std::vector<uint8_t> zero;
  // Load: return kDataLoss before the copy if the checksum differs.
  std::optional<Id128> expected;
  // Load: returns the number of bytes at the start of the arena that are filled by now. Called
  // before each part, with the number of bytes loaded, until everything is loaded. It may block,
  // and call FreeBallast; it must return more than `loaded`, or an error that ends the load. Empty:
  // the arena is full.
  std::function<Result<uint64_t>(uint64_t loaded)> filled;
  // Called on the caller's thread with the bytes copied and the total.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct CopyResult {
  // Save, on request: names range by range for blocks of kBlockBytes; zero for a zero block.
  std::vector<Id128> names;
  uint64_t zero_bytes = 0;  // bytes in zero blocks
  uint64_t copied_bytes = 0;
  uint64_t cleared_bytes = 0;  // load: cleared; save: unchanged in the arena
  uint64_t cold_bytes = 0;     // bytes of the arena touched and registered during the copy
  double seconds = 0;          // duration of the copy alone
  // Save: time from the start until the first copy was submitted; GPU time for the names.
  double until_first_s = 0;
  double naming_s = 0;
  bool staged = false;  // copied through staging buffers: the arena is on disk or could not be
                        // registered
  std::optional<Id128> checksum;
};

struct WireSpeed {
  uint64_t bytes = 0;  // size of one copy
  double to_arena_bytes_per_s = 0;
  double to_gpu_bytes_per_s = 0;
};

struct NamingSpeed {
  uint64_t bytes = 0;
  double bytes_per_s = 0;
  double prepare_s = 0;  // time of the first load of the kernel
};

class Mover {
 public:
  // Starts nothing yet.
  explicit Mover(MoverOptions options);
  ~Mover();
  Mover(const Mover&) = delete;

  // All calls return kDeadlineExceeded if the mover did not answer in time and was killed,
  // kUnavailable if it died, and kResourceExhausted if memory of the GPU or machine is short.

  // Starts a mover if none runs, and creates its context. Call this before the program is touched,
  // because the context may not fit into GPU memory.
  Result<MoverInfo> Start(const Deadline& deadline);
  // Returns the pid of the mover, or 0 if none runs.
  pid_t pid() const { return process_.pid(); }
  // Stops the mover and waits until its GPU memory is free. A resident mover releases everything of
  // this client and stays.
  Status Stop();

  // Attaches an arena; starts a mover if none runs. Attaching the same unchanged file again keeps
  // its memory registered.
  Status Attach(const Arena& arena, const Deadline& deadline);
  Status Detach(const Deadline& deadline);
  // Touches and registers that many bytes of the arena ahead of time.
  Status Warm(uint64_t bytes, const Deadline& deadline);
  // Measures the best of five copies each way between the arena and GPU memory. The arena's content
  // is unchanged.
  Result<WireSpeed> Measure(uint64_t bytes, const Deadline& deadline);

  // Prepares naming of blocks with this key. Call it before the program is touched, because it may
  // need GPU memory. Returns kUnimplemented if the kernel cannot be loaded; names must then be
  // computed by the CPU.
  Status PrepareNames(const BlockSecret& secret, const Deadline& deadline);
  // Measures the best of five runs on random bytes with a random key. Needs that much GPU memory.
  Result<NamingSpeed> MeasureNaming(uint64_t bytes, const Deadline& deadline);

  // Copies the memory behind `fds`, one for each range, into the attached arena. The caller keeps
  // the descriptors. Afterwards the mover also holds the memory, until Release(). After an error
  // nothing is held and GPU memory is unchanged; kInvalidArgument means that a descriptor or size
  // from the program is wrong.
  Result<CopyResult> Save(const std::vector<Range>& ranges, std::span<const int> fds,
                          const CopyOptions& options, const Deadline& deadline);

  // Allocates all memory plus a ballast of that size, or nothing. kResourceExhausted names the
  // needed and the free size.
  Status PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                     const Deadline& deadline);
  Status FreeBallast(const Deadline& deadline);
  // Copies the attached arena into that memory; parts that are not in the arena become zero. On
  // error all of it is released.
  Result<CopyResult> Load(const CopyOptions& options, const Deadline& deadline);
  // Returns descriptors of that memory, in order.
  Result<std::vector<UniqueFd>> Export(const Deadline& deadline);

  // Releases all memory of a save or load, to finish or cancel it. Succeeds if no mover runs. The
  // arena stays attached.
  Status Release(const Deadline& deadline);

 private:
  Status SendRanges(wire::Op op, const std::vector<Range>& ranges, std::span<const int> fds,
                    const Deadline& deadline);
  // `file` is as the request's flags require, or -1. `before_bytes` is the size of earlier parts.
  Result<CopyResult> Copy(const wire::Request& request, int file, const CopyOptions& options,
                          const Deadline& deadline, uint64_t before_bytes = 0);
  Result<CopyResult> SaveImported(const std::vector<Range>& ranges, const CopyOptions& options,
                                  const Deadline& deadline);
  Status CheckAllCopied(const CopyResult& result) const;

  MoverProcess process_;
  size_t count_ = 0;  // ranges of the prepared load
  uint64_t total_bytes_ = 0;
  uint64_t arena_bytes_ = 0;  // end of the prepared load's data in the arena
};

}  // namespace stasis::dataplane
