#include "api/usage_watch.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/operation_id.h"

namespace stasis::api {
namespace {

constexpr std::chrono::seconds kMaxAge{5};
constexpr std::chrono::seconds kScrapeTimeout{2};
constexpr std::chrono::seconds kWorkerTimeout{20};

}  // namespace

void UsageWatch::Add(uid_t uid, const v1::WorkerRequest& work) {
  std::string key = std::to_string(uid) + "\n" + work.context().folders().SerializeAsString();
  std::lock_guard lock(mutex_);
  Folder& folder = folders_[key];
  folder.uid = uid;
  folder.last_call = Clock::now();
  // Use the credentials and settings of this call, but another method.
  folder.work = work;
  folder.work.set_method("GetUsage");
  folder.work.clear_request();
  DropOldestLocked(uid, key);
}

void UsageWatch::DropOldestLocked(uid_t uid, const std::string& except) {
  const auto of_user = std::count_if(folders_.begin(), folders_.end(),
                                     [uid](const auto& entry) { return entry.second.uid == uid; });
  const bool too_many_of_user = static_cast<size_t>(of_user) > kMaxFoldersOfUser;
  if (!too_many_of_user && folders_.size() <= kMaxFolders) return;
  auto oldest = folders_.end();
  for (auto at = folders_.begin(); at != folders_.end(); ++at) {
    // A running worker refers to its folder's entry, so the entry must stay.
    if (at->second.worker != nullptr || at->first == except) continue;
    if (too_many_of_user && at->second.uid != uid) continue;
    if (oldest == folders_.end() || at->second.last_call < oldest->second.last_call) oldest = at;
  }
  folders_.erase(oldest == folders_.end() ? folders_.find(except) : oldest);
}

void UsageWatch::StartWorkerLocked(const std::string& key, Folder& folder) {
  folder.asked = Clock::now();
  folder.work.set_operation(NewOperationId());
  auto worker = Worker::Start(
      folder.work, [](const std::string&) {},
      [this, key](const Result<std::string>& reply, bool) { TakeAnswer(key, reply); });
  if (worker) {
    folder.worker = *worker;
  } else {
    daemon_metrics_.CountUsageFailure();
    log::Write(log::Level::kWarn, "cannot read the figures of a user",
               log::ErrorFields(worker.error()));
  }
}

void UsageWatch::TakeAnswer(const std::string& key, const Result<std::string>& reply) {
  std::lock_guard lock(mutex_);
  auto found = folders_.find(key);
  if (found == folders_.end()) return;
  Folder& folder = found->second;
  folder.worker.reset();
  v1::Usage usage;
  if (reply && usage.ParseFromString(*reply)) {
    folder.usage = std::move(usage);
    folder.answered = Clock::now();
  } else {
    daemon_metrics_.CountUsageFailure();
    log::Fields fields = {{"uid", uint64_t{folder.uid}}};
    if (!reply) {
      for (auto& field : log::ErrorFields(reply.error())) fields.push_back(std::move(field));
    }
    log::Write(log::Level::kDebug, "cannot read the figures of a user", fields);
  }
  answered_.notify_all();
}

void UsageWatch::Refresh() {
  std::unique_lock lock(mutex_);
  const auto now = Clock::now();
  for (auto& [key, folder] : folders_) {
    if (folder.worker != nullptr) {
      if (now - folder.asked > kWorkerTimeout) folder.worker->Abandon();
    } else if (now - folder.asked > kMaxAge || folder.asked == Clock::time_point()) {
      StartWorkerLocked(key, folder);
    }
  }
  answered_.wait_for(lock, kScrapeTimeout, [this, now] {
    return std::none_of(folders_.begin(), folders_.end(), [now](const auto& entry) {
      // Do not wait for a late worker a second time.
      return entry.second.worker != nullptr && now - entry.second.asked < kScrapeTimeout;
    });
  });
  PublishLocked();
}

void UsageWatch::PublishLocked() {
  std::vector<DaemonMetrics::UserUsage> usages;
  // Two entries may belong to the same folders, for example if one call names them and another
  // relies on the configuration. The figures of these folders are published only once.
  std::set<std::pair<uid_t, std::string>> published;
  for (const auto& [key, folder] : folders_) {
    if (!folder.usage) continue;
    if (!published.emplace(folder.uid, folder.usage->folders().SerializeAsString()).second)
      continue;
    const std::chrono::duration<double> age = Clock::now() - folder.answered;
    usages.push_back({folder.uid, age.count(), *folder.usage});
  }
  daemon_metrics_.SetUsages(usages);
}

}  // namespace stasis::api
