// What a worker says of its call in the daemon's log, by itself: it may outlive the daemon.
// docs/logs.md names the fields.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::service {

// Where the daemon's log is in a worker.
inline constexpr int kLogFd = 3;

class WorkerLog {
 public:
  // Its lines have the operation's id, verb and target, and the caller. Without a descriptor 3
  // nothing is said.
  static void Open(const v1::WorkerRequest& request, const std::string& verb,
                   const std::string& target);

  explicit WorkerLog(bool operation) : operation_(operation) {}
  void Began() const;
  void Event(const v1::OperationEvent& event) const;
  void Ended(const Result<std::string>& reply) const;

 private:
  const bool operation_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace stasis::service
