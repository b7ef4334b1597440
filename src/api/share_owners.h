// The users who have jobs that share GPUs, with what a worker needs to act for them. Kept in a file
// beside the daemon's socket, so that the next daemon goes on.
//
// A job is named by its owner's key and its own id: "1000-5f3a9c01/llama".
//
// Safe to use from any thread.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/caller.h"
#include "sharing/coordinator.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

struct ShareOwner {
  Caller caller;
  v1::WorkerRequest work;  // with credentials, folders and settings, but no method
};

// Splits the name of a program. `key` is empty if it is not valid.
struct ShareName {
  std::string key;
  std::string job;
};
ShareName SplitShareName(const std::string& id);
// The key of an owner with these resolved folders.
std::string ShareOwnerKey(uid_t uid, const v1::CallContext::Folders& folders);

class ShareOwners {
 public:
  // Above these limits a new owner is refused.
  static constexpr size_t kMaxFoldersOfUser = 4;
  static constexpr size_t kMaxOwners = 256;

  explicit ShareOwners(std::string path) : path_(std::move(path)) {}

  // Reads the file. A missing or damaged file is like an empty one: the owner of a running job is
  // then known again when the owner next starts or changes a job.
  std::map<std::string, sharing::Saved> Load();
  // Adds the caller of `work`. Returns kResourceExhausted if there are too many.
  Status Add(const Caller& caller, const v1::WorkerRequest& work);
  // Forgets an owner without jobs that share or can be restored, unless it was added a short time
  // ago.
  void Forget(const std::string& entry);
  // Keeps these accounts, and the pins of jobs of SetJobs that are not running.
  void SetSaved(const std::map<std::string, sharing::Saved>& saved);
  // Sets the ids of the owner's jobs that run or can be restored.
  void SetJobs(const std::string& entry, std::set<std::string> jobs);
  bool IsPinned(const std::string& id) const;

  // The entries by a key of this class, which is not the owner's key: the folders of a call may be
  // unknown until a worker has resolved them.
  std::map<std::string, ShareOwner> All() const;
  // Sets the key that the entry's worker has found. Returns false if another entry has it.
  bool Resolve(const std::string& entry, const std::string& key);
  // Returns the key of an entry, or an empty string as long as it is unknown.
  std::string KeyOf(const std::string& entry) const;
  std::optional<ShareOwner> Find(const std::string& key) const;
  std::vector<std::string> KeysOf(uid_t uid) const;

 private:
  struct Entry {
    ShareOwner owner;
    std::string key;
    std::chrono::steady_clock::time_point added;
    std::set<std::string> jobs = {};
  };
  void SaveLocked() const;

  const std::string path_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, sharing::Saved> saved_;
};

}  // namespace stasis::api
