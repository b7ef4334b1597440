// Watches the resources that users' programs use, for the metrics. The daemon does not read users'
// files itself. For each user who has called, and for its own user, it starts a worker with that
// user's credentials, which calls GetUsage.
//
// Safe to use from any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "api/daemon_metrics.h"
#include "api/worker.h"

namespace stasis::api {

class UsageWatch {
 public:
  // Above these limits the folders whose last call is the oldest are dropped.
  static constexpr size_t kMaxFoldersOfUser = 4;
  static constexpr size_t kMaxFolders = 64;

  explicit UsageWatch(DaemonMetrics& daemon_metrics) : daemon_metrics_(daemon_metrics) {}

  // Adds the folders of `work`, a call by user `uid`. Workers read them with the credentials and
  // settings of this call.
  void Add(uid_t uid, const v1::WorkerRequest& work);

  // Updates figures that are older than a few seconds. Waits only a short time for the workers; the
  // next call publishes later answers.
  void Refresh();

 private:
  using Clock = std::chrono::steady_clock;
  struct Folder {
    uid_t uid = 0;
    v1::WorkerRequest work;
    Clock::time_point last_call;
    std::shared_ptr<Worker> worker;  // null if none runs
    Clock::time_point asked;
    Clock::time_point answered;
    std::optional<v1::Usage> usage;
  };
  void DropOldestLocked(uid_t uid, const std::string& except);
  void StartWorkerLocked(const std::string& key, Folder& folder);
  void TakeAnswer(const std::string& key, const Result<std::string>& reply);
  void PublishLocked();

  DaemonMetrics& daemon_metrics_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::string, Folder> folders_;
};

}  // namespace stasis::api
