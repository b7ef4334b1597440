// An ObjectStore in a folder, which may be on a network file system (NFS, Lustre).
//
// An object is a regular file of mode 0600 whose path below the folder is its key. Put() writes
// ~incoming/RANDOM, syncs it, renames it and syncs the folder; `~` is in no key. Symbolic links are
// not followed below the folder.
//
// Limits: a call that blocks in the kernel, because a file server does not answer, does not end at
// its deadline. An NFS client shows new files of other hosts late, unless the folder is mounted
// with actimeo=0.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "objects/object_store.h"

namespace stasis::objects {

// kTemporary: nothing is synced, because the objects are not needed after a crash.
enum class Durability : uint8_t { kDurable, kTemporary };

class FolderStore final : public ObjectStore {
 public:
  // The folder must exist. Creating it could fill a mount point whose file system is not mounted.
  static Result<std::unique_ptr<FolderStore>> Open(const std::string& path,
                                                   Durability durability = Durability::kDurable);

  Status Put(const std::string& key, std::span<const std::string_view> parts,
             const CallOptions& call = {}) override;
  Status Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
             const CallOptions& call = {}) override;
  Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                               const CallOptions& call = {}) override;
  Result<ListPage> List(const std::string& prefix, const std::string& start_after, uint32_t limit,
                        const CallOptions& call = {}) override;
  Status Delete(const std::string& key, const CallOptions& call = {}) override;
  // Ages are computed with the clock of the file system, so the clocks of hosts may differ. A Put()
  // that is still running fails if its file is removed.
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds older_than,
                                   const CallOptions& call = {}) override;
  // Fails on NFS that was mounted without actimeo=0 (mounts.h).
  Status CheckLists() const override;
  std::string Name() const override { return path_; }
  Counters counters() const override;

 private:
  FolderStore(std::string path, UniqueFd folder, Durability durability)
      : path_(std::move(path)), folder_(std::move(folder)), durability_(durability) {}
  Status Begin(const CallOptions& call);
  void Count(uint64_t sent, uint64_t received);
  Result<UniqueFd> OpenIncoming() const;

  const std::string path_;
  const UniqueFd folder_;
  const Durability durability_;
  mutable std::mutex mutex_;
  Counters counters_;
};

}  // namespace stasis::objects
