// The interfaces to movers for the layers above: one GPU's mover, and all movers of an operation.
// mover_client.h and resident.h implement them.
//
// A mover may die at any moment without loss of data. During a save, the caller still holds the
// descriptors of the GPU memory. During a load, the data is in the arena, which is a file.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/block_hash.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "dataplane/arena.h"
#include "dataplane/load_source.h"

namespace stasis::dataplane {

struct MoverInfo {
  uint64_t context_bytes = 0;  // GPU memory of the mover's context; 0 if unknown
  uint64_t free_bytes = 0;     // free memory of the GPU with the mover running
  uint64_t total_bytes = 0;
  // True if the mover ends with this client, and what it has registered with it.
  bool ends_with_client = false;
};

struct CopyOptions {
  // Save: compute the checksum of the data, which takes one read of the arena.
  bool checksum = false;
  // Save: the GPU hashes all blocks (after PrepareHashes). Zero blocks are not copied.
  bool hashes = false;
  // Save with hashes: the hash of the data at each block's place in the arena, zero if unknown; or
  // empty. Blocks whose hash is unchanged are not copied.
  std::vector<Id128> known;
  // Load: one byte for each block, 1 for a zero block whatever the arena contains; or empty.
  std::vector<uint8_t> zero;
  // Load: return kDataLoss before the copy if the checksum differs.
  std::optional<Id128> expected;
  // Load: returns the number of bytes at the start of the arena that are filled by now. Called
  // before each part, with the number of bytes loaded, until everything is loaded. It may block,
  // and call FreeBallast; it must return more than `loaded`, or an error that ends the load. If
  // there is no such function, the arena is already filled.
  std::function<Result<uint64_t>(uint64_t loaded)> filled;
  // Called on the caller's thread with the bytes copied and the total.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct CopyResult {
  // Save, on request: hashes range by range for blocks of kBlockBytes; zero for a zero block.
  std::vector<Id128> hashes;
  uint64_t zero_bytes = 0;  // bytes in zero blocks
  uint64_t copied_bytes = 0;
  uint64_t cleared_bytes = 0;  // load: cleared; save: unchanged in the arena
  uint64_t cold_bytes = 0;     // bytes of the arena touched and registered during the copy
  double seconds = 0;          // duration of the copy alone
  // Save: time from the start until the first copy was submitted; GPU time for the hashes.
  double until_first_s = 0;
  double hashing_s = 0;
  // Copied through staging buffers, because the arena is on disk or could not be registered.
  bool staged = false;
  std::optional<Id128> checksum;
};

struct WireSpeed {
  uint64_t bytes = 0;  // size of one copy
  double to_arena_bytes_per_s = 0;
  double to_gpu_bytes_per_s = 0;
};

struct HashingSpeed {
  uint64_t bytes = 0;
  double bytes_per_s = 0;
  double prepare_s = 0;  // time of the first load of the kernel
};

// A MoverLink must be used by one thread at a time. Movers of several GPUs work in parallel.
class MoverLink {
 public:
  virtual ~MoverLink() = default;

  // All calls return kDeadlineExceeded if the mover did not answer in time and was killed,
  // kUnavailable if it died, and kResourceExhausted if memory of the GPU or machine is short.

  // Starts a mover if none is running, and creates its context. Call this before the program is
  // touched, because the context may not fit into GPU memory.
  virtual Result<MoverInfo> Start(const Deadline& deadline) = 0;
  // Stops the mover and waits until its GPU memory is free. A resident mover releases everything
  // that it holds for this client and keeps running.
  virtual Status Stop() = 0;

  // Attaches an arena; starts a mover if none is running. If the same file is attached again, its
  // memory stays registered.
  virtual Status Attach(const Arena& arena, const Deadline& deadline) = 0;
  virtual Status Detach(const Deadline& deadline) = 0;
  // Touches and registers `bytes` of the arena ahead of time. Returns false if the driver did not
  // register them, so that copies are staged. If a stop is requested, kills the mover and returns
  // kCancelled.
  virtual Result<bool> Warm(uint64_t bytes, const std::stop_token& stop,
                            const Deadline& deadline) = 0;
  // Measures the best of five copies each way between the arena and GPU memory. The arena's content
  // is unchanged.
  virtual Result<WireSpeed> Measure(uint64_t bytes, const Deadline& deadline) = 0;

  // Prepares hashing of blocks with this key. Call it before the program is touched, because it may
  // need GPU memory. Returns kUnimplemented if the kernel cannot be loaded; hashes must then be
  // computed by the CPU.
  virtual Status PrepareHashes(const BlockSecret& secret, const Deadline& deadline) = 0;
  // Measures the best of five runs on random bytes with a random key. Needs `bytes` of GPU memory.
  virtual Result<HashingSpeed> MeasureHashing(uint64_t bytes, const Deadline& deadline) = 0;

  // Copies the memory behind `fds`, one for each range, into the attached arena. The caller keeps
  // the descriptors. Afterwards the mover also holds the memory, until Release(). After an error
  // nothing is held and GPU memory is unchanged; kInvalidArgument means that a descriptor or size
  // from the program is wrong.
  virtual Result<CopyResult> Save(const std::vector<Range>& ranges, std::span<const int> fds,
                                  const CopyOptions& options, const Deadline& deadline) = 0;

  // Allocates GPU memory for all ranges and a ballast of `ballast_bytes`, or nothing.
  // kResourceExhausted names the needed and the free size.
  virtual Status PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                             const Deadline& deadline) = 0;
  virtual Status FreeBallast(const Deadline& deadline) = 0;
  // Copies the attached arena into the memory that PrepareLoad allocated; parts that are not in the
  // arena become zero. On error all of that memory is released.
  virtual Result<CopyResult> Load(const CopyOptions& options, const Deadline& deadline) = 0;
  // Attaches a ring of buffers in place of an arena, for LoadFrom, and makes it ready. `load_bytes`
  // is the size of the largest load. The ring has at most `most_bytes`, or the size of the smallest
  // ring (ring_feed.h). Detach frees it.
  virtual Status AttachRing(uint64_t load_bytes, uint64_t most_bytes, const Deadline& deadline) = 0;
  // Called on the caller's thread with the number of bytes loaded so far. An error ends the load.
  // May call FreeBallast.
  using GoOn = std::function<Status(uint64_t loaded)>;
  // Copies the source into the memory that PrepareLoad allocated, whose ranges must not be in the
  // arena, and checks the memory there (LoadSource::Check). Call PrepareHashes and AttachRing
  // first. `go_on` is called regularly. On error all of that memory is released.
  virtual Status LoadFrom(const LoadSource& source, const GoOn& go_on,
                          const Deadline& deadline) = 0;
  // Returns descriptors of the memory that PrepareLoad allocated, in the order of the ranges.
  virtual Result<std::vector<UniqueFd>> Export(const Deadline& deadline) = 0;

  // Releases all memory of a save or load, to finish or cancel it. Succeeds if no mover is running.
  // The arena stays attached.
  virtual Status Release(const Deadline& deadline) = 0;
};

// The movers of an operation, started when needed, and arenas that are kept between operations.
// Thread-safe.
class MoverPool {
 public:
  virtual ~MoverPool() = default;
  // Returns the mover of `gpu`; a new one is not started yet.
  virtual MoverLink& MoverOf(const device::GpuUuid& gpu) = 0;
  // Stops all movers and frees their GPU memory, except the contexts of resident ones.
  virtual void StopMovers() = 0;
  // Stops this user's resident movers that serve no client, because their contexts take GPU memory.
  // Returns their number.
  virtual Result<int> StopIdleMovers(const Deadline& deadline) = 0;

  // True if TakeArena returns arenas given to KeepArena.
  virtual bool keeps_arenas() const = 0;
  // KeepArena stores an arena with its lock; TakeArena returns and removes it.
  virtual void KeepArena(Arena arena) = 0;
  virtual std::optional<Arena> TakeArena(const ArenaKey& key) = 0;
};

}  // namespace stasis::dataplane
