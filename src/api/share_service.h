// Shares the GPUs among the jobs of `run --share`: runs a sharing::Manager with workers that survey
// and swap in the name of each job's owner. With arena.reserve, the surveys have all running jobs
// of the owners, and host memory is made ready for them (arena_reserve.h).
//
// Safe to use from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/arena_reserve.h"
#include "api/caller.h"
#include "api/daemon_metrics.h"
#include "api/operation_table.h"
#include "api/share_answer.h"
#include "api/share_owners.h"
#include "api/share_waiters.h"
#include "base/result.h"
#include "config/settings.h"
#include "sharing/manager.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

class ShareService final : private sharing::Surveys, private sharing::Swaps {
 public:
  // `own` is a request of the daemon's own user, without a method. `folder` is that of the daemon's
  // socket. The arguments must outlive the object, which is never destroyed while it has work.
  static Result<std::unique_ptr<ShareService>> Start(const config::Settings& settings,
                                                     const std::string& folder,
                                                     const v1::WorkerRequest& own,
                                                     OperationTable& operations,
                                                     DaemonMetrics& metrics);

  // A job of this caller has started, or is about to.
  Status Note(const Caller& caller, const v1::WorkerRequest& work);
  // Calls `done` once, from another thread, with an error if host memory has no room for `bytes`
  // more. Waits for a survey, so folders.spill of a caller that was noted before counts.
  void AskRoom(uint64_t bytes, std::function<void(Status)> done);
  // A call that may have changed this user's jobs has ended. `work` is the call.
  void JobsMayHaveChanged(const Caller& caller, const v1::WorkerRequest& work);

  // Returns the program that shares GPUs and on which this call is about to work; empty if there is
  // none, or if the caller may not.
  std::string ProgramOf(const Caller& caller, const v1::WorkerRequest& work);
  // Calls `begin` in another thread once the call may work on the program. Returns a token for
  // EndCall.
  uint64_t BeginCall(const std::string& program, const std::string& method,
                     std::function<void()> begin);
  void EndCall(uint64_t token, bool ok);

  v1::ListSharesResponse List(const Caller& caller);
  // The calls that wait until the version of List() changes.
  ShareWaiters& waiters() { return *waiters_; }
  Status Pin(const Caller& caller, const v1::WorkerRequest& work,
             const v1::PinShareRequest& request);
  // Updates the metrics.
  void Publish();

 private:
  ShareService(v1::WorkerRequest own, std::string path, OperationTable& operations,
               DaemonMetrics& metrics)
      : own_(std::move(own)),
        owners_(std::move(path)),
        operations_(operations),
        metrics_(metrics) {}
  void Start(const std::set<std::string>& silent,
             std::function<void(Result<sharing::SurveyAnswer>)> done) override;
  void Start(const sharing::Plan::Swap& swap,
             std::function<void(sharing::SwapResult)> done) override;
  Result<sharing::SurveyAnswer> SurveyAll(const std::set<std::string>& silent);
  // `room_bytes` is the host memory that is not allocated.
  void AddPrograms(const std::string& entry, const ShareOwner& owner, const v1::ShareSurvey& survey,
                   uint64_t room_bytes, ShareAnswer& answer);
  bool IsPaused(const std::string& entry);
  // Leaves an owner alone for a while, and surveys again after it.
  void Pause(const std::string& entry);
  // Returns the program that the target of a call names and that the caller may manage, or an empty
  // string.
  std::string Find(const Caller& caller, const v1::WorkerRequest& work, const std::string& target);

  // Hands the memory of an owner's programs to `reserve_`.
  void Reserve(const std::string& entry, const ShareOwner& owner, const v1::ShareSurvey& survey,
               uint64_t room_bytes);

  const v1::WorkerRequest own_;
  ShareOwners owners_;
  std::unique_ptr<ArenaReserve> reserve_;  // null if arena.reserve is off
  OperationTable& operations_;
  DaemonMetrics& metrics_;
  std::mutex mutex_;
  std::map<std::string, std::set<std::string>> programs_;  // of each entry of `owners_`
  std::vector<std::string> pin_again_;                     // after the survey
  // Entries whose worker has failed. They must not delay the others again and again.
  struct Paused {
    std::chrono::seconds length{0};
    std::chrono::steady_clock::time_point until;
  };
  std::map<std::string, Paused> paused_;
  std::unique_ptr<agent_client::AgentWatches> watches_;
  std::unique_ptr<sharing::Manager> manager_;
  std::unique_ptr<ShareWaiters> waiters_;
};

}  // namespace stasis::api
