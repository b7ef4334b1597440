// The mapping of an arena in a mover. Chunks are touched and registered at first use. They stay
// registered for later saves and loads, even if other arenas are attached in between, until the
// file is removed. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/prefault.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

class AttachedArena {
 public:
  // `removals` is an inotify descriptor that becomes readable when ForgetRemoved() has work; -1 for
  // none.
  AttachedArena(const Gpu& gpu, int removals)
      : gpu_(gpu), removals_(removals), chunk_bytes_(ChunkBytes()) {}
  ~AttachedArena();
  AttachedArena(const AttachedArena&) = delete;

  // Attaches another arena. If its file was attached before, reuses all registered chunks, even if
  // the file has grown since. A file on disk cannot be registered (the kernel forbids long-term
  // pins of disk-backed pages), so its copies are staged.
  Status Attach(UniqueFd fd, uint64_t bytes);
  // Closes the arena's descriptor, which releases the arena's lock.
  void Detach();
  // Unmaps files that have been removed, except the attached one.
  void ForgetRemoved();
  bool attached() const { return fd_.valid(); }

  int fd() const { return fd_.get(); }
  char* data() const { return file_->mapping.data(); }
  uint64_t bytes() const { return file_ == nullptr ? 0 : file_->mapping.bytes(); }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Returns true if copies must go through staging buffers. May become true while chunks are
  // prepared.
  bool staged() const { return file_->staged; }
  // Returns true if the chunk can be copied without preparation.
  bool IsReady(uint64_t chunk) const { return file_->staged || file_->registered[chunk]; }

  // Prepares chunks in order. Half of the processors touch pages ahead of the registration.
  class Preparation {
   public:
    Preparation(AttachedArena& arena, const std::vector<uint64_t>& chunks);
    // Touches and registers the index-th of `chunks`; call in ascending order. If the driver
    // refuses to register, the arena is staged from then on: check staged().
    Status Ready(size_t index);
    uint64_t cold_bytes() const { return cold_bytes_; }

   private:
    AttachedArena& arena_;
    std::vector<uint64_t> chunks_;
    std::vector<int64_t> cold_index_;  // index in the prefaulter's list; -1: ready
    std::optional<Prefaulter> prefaulter_;
    uint64_t cold_bytes_ = 0;
  };

 private:
  struct File {
    // A second open file description, because the received one owns the lock. Used to map more of
    // the file and to check whether it still has a name.
    UniqueFd fd;
    uint64_t device = 0;
    uint64_t inode = 0;
    Mapping mapping;
    bool staged = false;
    std::vector<bool> registered;  // indexed by chunk
    int watch = -1;
  };

  uint64_t SizeOf(uint64_t chunk) const;
  void Unmap(File& file);
  // Returns false if the file must be mapped again.
  bool Grow(File& file, uint64_t bytes);

  const Gpu& gpu_;
  const int removals_;
  const uint64_t chunk_bytes_;
  UniqueFd fd_;
  File* file_ = nullptr;  // element of files_ that is attached
  std::list<File> files_;
};

}  // namespace stasis::dataplane
