// What users' programs take of this machine. The daemon reads no user's files: for each user who
// has called, and for itself, a worker with that user's rights looks (GetUsage of the service).
//
// Thread safe.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/measures.h"
#include "daemon/worker.h"

namespace stasis::daemon {

class UsageWatch {
 public:
  // Of one user and of all; those with which nobody has called for longest are forgotten.
  static constexpr size_t kMaxFoldersOfUser = 4;
  static constexpr size_t kMaxFolders = 64;

  explicit UsageWatch(Measures& measures) : measures_(measures) {}

  // `work` is a call of a user who came: whose rights and folders.
  void Remember(uid_t uid, const v1::WorkerRequest& work);

  // Brings the figures up to date where they are older than a few seconds, and returns when that is
  // done, or soon; who has not answered by then is heard the next time.
  void Refresh();

 private:
  using Clock = std::chrono::steady_clock;
  struct Folder {
    uid_t uid = 0;
    v1::WorkerRequest work;
    Clock::time_point called;
    std::shared_ptr<Worker> worker;  // that is looking
    Clock::time_point asked;
    Clock::time_point answered;
    std::optional<v1::Usage> usage;
  };
  void MakeRoomLocked(uid_t uid, const std::string& but);
  void Ask(const std::string& key, Folder& folder);
  void Answered(const std::string& key, const Result<std::string>& reply);
  void TellLocked();

  Measures& measures_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::string, Folder> folders_;
};

}  // namespace stasis::daemon
