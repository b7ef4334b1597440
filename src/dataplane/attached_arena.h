// The arena in a mover: mapped, touched and registered chunk by chunk as it is first used, and kept
// that way for the next save or load. Only in the mover's process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/prefault.h"

namespace stasis::dataplane {

// Large enough that the driver's cost for each registration and copy is lost in it (256 MiB are
// 5 ms on the wire), small enough that touching, registering and copying overlap.
// $STASIS_MOVER_CHUNK_MIB is for tests.
uint64_t ChunkBytes();

class AttachedArena {
 public:
  explicit AttachedArena(const Gpu& gpu) : gpu_(gpu), chunk_bytes_(ChunkBytes()) {}
  ~AttachedArena() { Detach(); }
  AttachedArena(const AttachedArena&) = delete;

  // Takes another arena in, or, when it is the very same file and size, keeps what is there.
  // A file that is not in memory cannot be registered (the kernel forbids long-term pins of pages
  // that a disk backs): it is staged.
  Status Attach(UniqueFd fd, uint64_t bytes);
  void Detach();
  bool attached() const { return fd_.valid(); }

  int fd() const { return fd_.get(); }
  char* data() const { return mapping_.data(); }
  uint64_t bytes() const { return mapping_.bytes(); }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Copies must go through buffers. May become true while chunks are made ready.
  bool staged() const { return staged_; }

  // Makes chunks ready in order, touching ahead of registering with all processors.
  class Preparation {
   public:
    Preparation(AttachedArena& arena, const std::vector<uint64_t>& chunks);
    // Touches and registers the index-th of `chunks`; called in order. When the driver refuses to
    // register, the arena is staged from then on: look.
    Status Ready(size_t index);
    uint64_t cold_bytes() const { return cold_bytes_; }

   private:
    AttachedArena& arena_;
    std::vector<uint64_t> chunks_;
    std::vector<int64_t> cold_index_;  // in the prefaulter's list; -1: is ready
    std::optional<Prefaulter> prefaulter_;
    uint64_t cold_bytes_ = 0;
  };

 private:
  uint64_t SizeOf(uint64_t chunk) const;

  const Gpu& gpu_;
  const uint64_t chunk_bytes_;
  UniqueFd fd_;
  Mapping mapping_;
  bool staged_ = false;
  std::vector<bool> registered_;  // by chunk
};

}  // namespace stasis::dataplane
