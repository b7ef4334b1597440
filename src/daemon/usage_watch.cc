#include "daemon/usage_watch.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/operation_id.h"

namespace stasis::daemon {
namespace {

constexpr std::chrono::seconds kFresh{5};
constexpr std::chrono::seconds kPatience{2};  // of who scrapes
constexpr std::chrono::seconds kLongest{20};  // that a worker may look

}  // namespace

void UsageWatch::Remember(uid_t uid, const v1::WorkerRequest& work) {
  std::string key = std::to_string(uid) + "\n" + work.context().folders().SerializeAsString();
  std::lock_guard lock(mutex_);
  Folder& folder = folders_[key];
  folder.uid = uid;
  folder.called = Clock::now();
  // The settings of the last call; without what it was to do.
  folder.work = work;
  folder.work.set_method("GetUsage");
  folder.work.clear_request();
  MakeRoomLocked(uid, key);
}

void UsageWatch::MakeRoomLocked(uid_t uid, const std::string& but) {
  const auto of_user = std::count_if(folders_.begin(), folders_.end(),
                                     [uid](const auto& entry) { return entry.second.uid == uid; });
  const bool too_many_of_user = static_cast<size_t>(of_user) > kMaxFoldersOfUser;
  if (!too_many_of_user && folders_.size() <= kMaxFolders) return;
  auto longest = folders_.end();
  for (auto at = folders_.begin(); at != folders_.end(); ++at) {
    // One that a worker is looking into stays until that has ended.
    if (at->second.worker != nullptr || at->first == but) continue;
    if (too_many_of_user && at->second.uid != uid) continue;
    if (longest == folders_.end() || at->second.called < longest->second.called) longest = at;
  }
  folders_.erase(longest == folders_.end() ? folders_.find(but) : longest);
}

void UsageWatch::Ask(const std::string& key, Folder& folder) {
  folder.asked = Clock::now();
  folder.work.set_operation(NewOperationId());
  auto worker = Worker::Start(
      folder.work, [](const std::string&) {},
      [this, key](const Result<std::string>& reply, bool) { Answered(key, reply); });
  if (worker) {
    folder.worker = *worker;
  } else {
    measures_.UsageFailed();
    log::Write(log::Level::kWarn, "a user's figures cannot be had",
               log::ErrorFields(worker.error()));
  }
}

void UsageWatch::Answered(const std::string& key, const Result<std::string>& reply) {
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
    measures_.UsageFailed();
    log::Fields fields = {{"uid", uint64_t{folder.uid}}};
    if (!reply) {
      for (auto& field : log::ErrorFields(reply.error())) fields.push_back(std::move(field));
    }
    log::Write(log::Level::kDebug, "a user's figures cannot be had", fields);
  }
  answered_.notify_all();
}

void UsageWatch::Refresh() {
  std::unique_lock lock(mutex_);
  const auto now = Clock::now();
  for (auto& [key, folder] : folders_) {
    if (folder.worker != nullptr) {
      if (now - folder.asked > kLongest) folder.worker->Abandon();
    } else if (now - folder.asked > kFresh || folder.asked == Clock::time_point()) {
      Ask(key, folder);
    }
  }
  answered_.wait_for(lock, kPatience, [this, now] {
    return std::none_of(folders_.begin(), folders_.end(), [now](const auto& entry) {
      // One that is late is not waited for again.
      return entry.second.worker != nullptr && now - entry.second.asked < kPatience;
    });
  });
  TellLocked();
}

void UsageWatch::TellLocked() {
  std::vector<Measures::UserUsage> usages;
  // One caller names his folders, another leaves them to his configuration: they may be the same.
  std::set<std::pair<uid_t, std::string>> told;
  for (const auto& [key, folder] : folders_) {
    if (!folder.usage) continue;
    if (!told.emplace(folder.uid, folder.usage->folders().SerializeAsString()).second) continue;
    const std::chrono::duration<double> age = Clock::now() - folder.answered;
    usages.push_back({folder.uid, age.count(), *folder.usage});
  }
  measures_.SetUsages(usages);
}

}  // namespace stasis::daemon
