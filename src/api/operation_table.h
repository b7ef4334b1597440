// The calls that are under way: their callers, progress and cancellation. Safe to use from any
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
  // For one user with all of his subordinate ids.
  static constexpr size_t kMaxCallsOfUser = 128;
  static constexpr size_t kMaxCalls = 1024;
  // Part of kMaxCalls that is reserved for root and the daemon's own user (IsPrivileged).
  static constexpr size_t kReservedCalls = 128;

  // Adds a call and returns its id. kResourceExhausted if there are too many; kUnavailable for an
  // operation while the daemon drains.
  Result<std::string> Begin(const Caller& caller, const std::string& method, bool operation,
                            const std::string& target);
  // Lets the call be cancelled from now on.
  void SetWorker(const std::string& id, const std::shared_ptr<Worker>& worker);
  void SetPhase(const std::string& id, const std::string& phase);
  // The work has ended. The call still counts against the limits until End(), when its answer has
  // been delivered.
  void Finish(const std::string& id);
  void End(const std::string& id);

  // Operations that `caller` may see.
  std::vector<v1::Operation> List(const Caller& caller) const;
  // kNotFound if there is no such operation that `caller` may cancel.
  Status Cancel(const Caller& caller, const std::string& id);
  size_t count() const;
  // True if a call with exactly these credentials has not ended.
  bool HasCalls(const Caller& caller) const;
  // Counts operations, without other calls.
  std::map<std::string, size_t> CountByVerb() const;

  // Lets no new operation begin, and waits until none is under way and, for a few seconds, until
  // their answers are delivered. kDeadlineExceeded if some are still under way.
  Status Drain(const Deadline& deadline);
  bool draining() const;
  // Sets a callback for the start of a drain. Must be set before the first call.
  void OnDrain(std::function<void()> on_drain) { on_drain_ = std::move(on_drain); }

 private:
  struct Entry {
    Caller caller;
    v1::Operation operation;
    bool is_operation = false;
    bool finished = false;  // only its answer is still to be delivered
    bool under_way() const { return is_operation && !finished; }
    std::shared_ptr<Worker> worker;
  };
  size_t CountLocked() const;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::string, Entry> entries_;
  bool draining_ = false;
  std::function<void()> on_drain_;
};

}  // namespace stasis::api
