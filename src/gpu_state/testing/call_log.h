// Records the calls of fakes in order and injects faults into them.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace stasis::fakes {

enum class Fault {
  kFail,       // returns an error and changes nothing
  kFailAfter,  // does the work and returns an error
  // Returns kDeadlineExceeded, as clients do at a deadline. Later calls of the same fake hang too
  // until Unhang(), except those of movers.
  kHang,
  kKill,  // a process of the program dies, and the call fails
};

// Thread-safe.
class CallLog {
 public:
  // Called for a fault kKill, with the name of the call: kills a process of the program.
  std::function<void(const std::string& call)> kill = [](const std::string&) {};

  // Injects the fault into the call with that name ("agent 1 Close"), at its n-th occurrence.
  void Set(const std::string& call, Fault fault, int occurrence = 1) {
    std::lock_guard lock(mutex_);
    faults_[{call, occurrence}] = fault;
  }
  // The n-th occurrence of the call returns this error and does nothing.
  void SetError(const std::string& call, Error error, int occurrence = 1) {
    std::lock_guard lock(mutex_);
    errors_[{call, occurrence}] = std::move(error);
  }
  void Unhang() {
    std::lock_guard lock(mutex_);
    hung_.clear();
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    calls_.clear();
    counts_.clear();
    faults_.clear();
    errors_.clear();
  }

  std::vector<std::string> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  int Count(const std::string& call) const {
    std::lock_guard lock(mutex_);
    auto count = counts_.find(call);
    return count == counts_.end() ? 0 : count->second;
  }
  // Index of the first occurrence; -1 if the call was not made.
  int IndexOf(const std::string& call) const {
    std::lock_guard lock(mutex_);
    auto at = std::find(calls_.begin(), calls_.end(), call);
    return at == calls_.end() ? -1 : static_cast<int>(at - calls_.begin());
  }

  // Records the call and does its work, unless a fault prevents that.
  template <class Work>
  auto Run(const std::string& fake, const std::string& what, const Work& work) -> decltype(work()) {
    const std::string call = fake + " " + what;
    std::optional<Fault> fault;
    std::optional<Error> error;
    {
      std::lock_guard lock(mutex_);
      calls_.push_back(call);
      const std::pair<std::string, int> key{call, ++counts_[call]};
      if (auto found = faults_.find(key); found != faults_.end()) fault = found->second;
      if (auto found = errors_.find(key); found != errors_.end()) error = found->second;
      // A mover that hangs is replaced.
      if (fault == Fault::kHang && !fake.starts_with("mover")) hung_.insert(fake);
      if (hung_.contains(fake)) fault = Fault::kHang;
    }
    if (error) return Fail(*error);
    if (fault == Fault::kHang) return Fail(Code::kDeadlineExceeded, call + " hangs");
    if (fault == Fault::kKill) {
      kill(call);
      return Fail(Code::kUnavailable, call + ": the process has died");
    }
    if (fault == Fault::kFail) return Fail(Code::kInternal, call + " fails");
    auto result = work();
    if (fault == Fault::kFailAfter) return Fail(Code::kUnavailable, call + ": the answer was lost");
    return result;
  }

 private:
  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::string> calls_;
  std::map<std::string, int> counts_;
  std::map<std::pair<std::string, int>, Fault> faults_;
  std::map<std::pair<std::string, int>, Error> errors_;
  std::set<std::string> hung_;
};

}  // namespace stasis::fakes
