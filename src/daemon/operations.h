// The calls that are under way: who began them, how far they are, and how they are cancelled.
// Thread safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "daemon/caller.h"
#include "daemon/worker.h"

namespace stasis::daemon {

class Operations {
 public:
  // Of one user with all his subordinate ids, and of all.
  static constexpr size_t kMaxCallsOfUser = 128;
  static constexpr size_t kMaxCalls = 1024;
  // Of these, for root and the daemon's own user (HasRoomKept).
  static constexpr size_t kKeptCalls = 128;

  // Notes that a call begins; its id. kResourceExhausted: too many. kUnavailable: an operation, and
  // none is begun any more.
  Result<std::string> Begin(const Caller& caller, const std::string& method, bool operation,
                            const std::string& target);
  // From here on it can be cancelled.
  void SetWorker(const std::string& id, const std::shared_ptr<Worker>& worker);
  void SetPhase(const std::string& id, const std::string& phase);
  // Its work has ended: it is not under way any more, but counts until End, when its answer was
  // taken.
  void Finish(const std::string& id);
  void End(const std::string& id);

  // Those that `caller` may see, without calls that change nothing.
  std::vector<v1::Operation> List(const Caller& caller) const;
  // kNotFound: there is none that `caller` may cancel.
  Status Cancel(const Caller& caller, const std::string& id);
  size_t count() const;
  // Any call of this caller has not ended.
  bool HasCalls(const Caller& caller) const;
  // Of operations alone.
  std::map<std::string, size_t> CountByVerb() const;

  // No operation is begun from here on. Returns when none is under way and, within some seconds,
  // their answers were taken. kDeadlineExceeded: some are still under way.
  Status Drain(const Deadline& deadline);
  bool draining() const;
  // Called when a drain begins. Set before there are calls.
  void OnDrain(std::function<void()> on_drain) { on_drain_ = std::move(on_drain); }

 private:
  struct Entry {
    Caller caller;
    v1::Operation operation;
    bool changes = false;   // it is an operation
    bool finished = false;  // and only its answer is still to be taken
    bool under_way() const { return changes && !finished; }
    std::shared_ptr<Worker> worker;
  };
  size_t CountLocked() const;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::string, Entry> entries_;
  bool draining_ = false;
  std::function<void()> on_drain_;
};

}  // namespace stasis::daemon
