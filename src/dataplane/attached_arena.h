// The arena in a mover: mapped, touched and registered chunk by chunk as it is first used, and kept
// that way for the next save or load, also when others were attached meanwhile, until its file is
// removed. Only in the mover's process.
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
  // `removals`: an inotify descriptor, which becomes readable when there is something for
  // ForgetRemoved(); -1: none.
  AttachedArena(const Gpu& gpu, int removals)
      : gpu_(gpu), removals_(removals), chunk_bytes_(ChunkBytes()) {}
  ~AttachedArena();
  AttachedArena(const AttachedArena&) = delete;

  // Takes another arena in, or, when it is a file that was here before, what is still registered of
  // it, also when it has grown since.
  // A file that is not in memory cannot be registered (the kernel forbids long-term pins of pages
  // that a disk backs): it is staged.
  Status Attach(UniqueFd fd, uint64_t bytes);
  // Lets go of its descriptor, and with that of its lock.
  void Detach();
  // Lets go of the memory of files that have no name any more, but for the one that is attached.
  void ForgetRemoved();
  bool attached() const { return fd_.valid(); }

  int fd() const { return fd_.get(); }
  char* data() const { return file_->mapping.data(); }
  uint64_t bytes() const { return file_ == nullptr ? 0 : file_->mapping.bytes(); }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Copies must go through buffers. May become true while chunks are made ready.
  bool staged() const { return file_->staged; }
  // Nothing has to be done before this chunk is copied.
  bool IsReady(uint64_t chunk) const { return file_->staged || file_->registered[chunk]; }

  // Makes chunks ready in order, touching ahead of registering with half of the processors.
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
  struct File {
    // An open file of its own, for the one that was sent has the lock: to map more of it, and to
    // see whether it still has a name.
    UniqueFd fd;
    uint64_t device = 0;
    uint64_t inode = 0;
    Mapping mapping;
    bool staged = false;
    std::vector<bool> registered;  // by chunk
    int watch = -1;
  };

  uint64_t SizeOf(uint64_t chunk) const;
  void Unmap(File& file);
  // False when it has to be mapped anew.
  bool Grow(File& file, uint64_t bytes);

  const Gpu& gpu_;
  const int removals_;
  const uint64_t chunk_bytes_;
  UniqueFd fd_;
  File* file_ = nullptr;  // of files_; the one that is attached
  std::list<File> files_;
};

}  // namespace stasis::dataplane
