// Executes the requests of a mover. Runs only in the mover's process, on one thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "dataplane/attached_arena.h"
#include "dataplane/block_hasher.h"
#include "dataplane/copy.h"
#include "dataplane/device_memory.h"
#include "dataplane/gpu.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/ring_copy.h"
#include "ipc/helper_server.h"

namespace stasis::dataplane {

class MoverWork {
 public:
  // `removals` is an inotify descriptor that becomes readable when an arena file was removed.
  MoverWork(const ipc::HelperServerOptions& options, int removals)
      : options_(options), removals_(removals) {}

  // Executes a request. Fills the operation's fields of `reply` and the descriptors of `out`. After
  // an error during a save or load the caller must send `release`.
  Status Do(const wire::Request& request, std::vector<UniqueFd> fds, wire::Reply& reply,
            std::vector<UniqueFd>& out, const Progress& progress);

  // Releases the attached arena and its lock. Not allowed during a save or load.
  Status Detach();
  // Releases everything that the mover holds for the client, including memory and the secret of
  // hashes. Allowed at any time.
  Status End();
  // Unmaps arenas that were removed.
  Status ForgetRemoved();

  // Returns true if the mover holds GPU memory besides its context.
  bool holds_memory() const { return memory_ != nullptr; }

 private:
  enum class Phase { kIdle, kSaving, kLoading };

  Status Start();
  Status Expect(Phase phase, const wire::Request& request) const;
  Status ExpectArena() const;
  Status Hello(wire::Reply& reply);
  Status Warm(uint64_t bytes);
  Status Measure(uint64_t bytes, wire::Reply& reply);
  Status Begin(Phase phase, const wire::Request& request, wire::Reply& reply);
  Status Append(const wire::Request& request, const std::vector<UniqueFd>& fds);
  Status Save(const wire::Request& request, const std::vector<UniqueFd>& fds, wire::Reply& reply,
              const Progress& progress);
  // `file` is as for kFlagHashes.
  Result<CopyReport> SaveChanged(int file, wire::Reply& reply, const Progress& progress);
  Status Load(const wire::Request& request, const std::vector<UniqueFd>& fds, wire::Reply& reply,
              const Progress& progress);
  Status OpenLoaded(const wire::Request& request);
  Status LoadParts(const wire::Request& request);
  Status HashLoaded(const wire::Request& request, int file, wire::Reply& reply);
  static void FillReply(const CopyReport& report, wire::Reply& reply);
  Status PrepareHashes(const wire::Request& request, wire::Reply& reply);
  Status MeasureHashing(uint64_t bytes, wire::Reply& reply);
  Status Release();

  const ipc::HelperServerOptions options_;
  const int removals_;
  std::optional<Gpu> gpu_;
  std::unique_ptr<AttachedArena> arena_;
  std::unique_ptr<Copier> copier_;
  std::unique_ptr<BlockHasher> hasher_;
  std::unique_ptr<RingCopier> ring_copier_;

  Phase phase_ = Phase::kIdle;
  Stopwatch watch_;  // started with the save or load
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<Range> ranges_;
  std::vector<uint8_t> skip_;  // indexed by block; empty if none is skipped
  uint64_t ranges_bytes_ = 0;
  uint64_t expected_count_ = 0;
  bool is_open_ = false;       // the load has begun
  uint64_t loaded_bytes_ = 0;  // bytes of the arena loaded so far
};

}  // namespace stasis::dataplane
