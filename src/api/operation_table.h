// Tracks the calls in progress: their callers, progress and cancellation. Safe to use from any
// thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/caller.h"
#include "api/worker.h"
#include "base/deadline.h"
#include "base/result.h"

namespace stasis::api {

class OperationTable {
 public:
  // The limit for one user, including the user's subordinate ids. Holds are counted apart from all
  // other calls, with the same limits: commands that work without the daemon need one each, also
  // when the user's other calls have reached the limit.
  static constexpr size_t kMaxCallsOfUser = 128;
  static constexpr size_t kMaxCalls = 1024;
  // Part of kMaxCalls that is reserved for root and the daemon's own user (IsPrivileged).
  static constexpr size_t kReservedCalls = 128;

  // Adds a call and returns its id. Returns kResourceExhausted if there are too many calls, and
  // kUnavailable for an operation while the daemon is draining.
  Result<std::string> Begin(const Caller& caller, const std::string& method, bool operation,
                            const std::string& target);
  // Adds a hold of a program by another process (HoldShare), which a drain does not wait for.
  Result<std::string> BeginHold(const Caller& caller);
  // Sets the worker of the call, so that Cancel() can reach it.
  void SetWorker(const std::string& id, const std::shared_ptr<Worker>& worker);
  void SetPhase(const std::string& id, const std::string& phase);
  // Finish() marks the end of the work, and End() the delivery of the answer. The call counts
  // against the limits until End().
  void Finish(const std::string& id);
  void End(const std::string& id);

  // Returns the operations that `caller` may see.
  std::vector<v1::Operation> List(const Caller& caller) const;
  // Returns kNotFound if there is no such operation, or if `caller` may not cancel it.
  Status Cancel(const Caller& caller, const std::string& id);
  size_t count() const;
  // Returns true if a call with exactly these credentials has not ended.
  bool HasCalls(const Caller& caller) const;
  // Returns the number of operations in progress by verb. Other calls are not counted.
  std::map<std::string, size_t> CountByVerb() const;

  // Rejects new operations, waits until no operation is in progress, and then waits a few seconds
  // for the delivery of the answers. Returns kDeadlineExceeded if operations are still in progress.
  Status Drain(const Deadline& deadline);
  bool draining() const;
  // Sets a callback for the start of a drain. Must be set before the first call.
  void OnDrain(std::function<void()> on_drain) { on_drain_ = std::move(on_drain); }

 private:
  struct Entry {
    Caller caller;
    v1::Operation operation;
    bool is_operation = false;
    bool is_hold = false;
    bool finished = false;  // the work has ended; the answer may still have to be delivered
    bool under_way() const { return is_operation && !finished; }
    std::shared_ptr<Worker> worker;
  };
  Status CheckLimits(const Caller& caller, bool hold) const;
  std::string Add(Entry entry);
  size_t CountLocked() const;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::string, Entry> entries_;
  bool draining_ = false;
  std::function<void()> on_drain_;
};

}  // namespace stasis::api
