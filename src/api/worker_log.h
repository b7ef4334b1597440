// Writes a worker's lines to the daemon's log. The worker does this itself, because it may outlive
// the daemon. docs/logs.md lists the fields.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// The descriptor of the daemon's log in a worker.
inline constexpr int kLogFd = 3;
// The descriptor of a connection that the daemon hands to its worker (operation_methods.cc).
inline constexpr int kConnectionFd = 4;

class WorkerLog {
 public:
  // Adds the operation's id, verb and target, and the caller, to every line. Without a descriptor
  // kLogFd nothing is logged.
  static void Open(const v1::WorkerRequest& request, const std::string& verb,
                   const std::string& target);

  explicit WorkerLog(bool operation) : operation_(operation) {}
  void LogBegin() const;
  void LogEvent(const v1::OperationEvent& event) const;
  void LogEnd(const Result<std::string>& reply) const;

 private:
  const bool operation_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace stasis::api
