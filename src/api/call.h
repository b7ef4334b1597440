// The context of a method in addition to its request: folders, settings, progress and cancellation.
// The daemon's worker and a command without a daemon use it in the same way.
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "base/paths.h"
#include "config/settings.h"

namespace google::protobuf {
class MessageLite;
}

namespace stasis::api {

struct Call {
  Paths paths;
  config::Settings settings;
  // Receives an event of the method's stream. Never called by two threads at once. May be empty.
  std::function<void(const google::protobuf::MessageLite&)> emit;
  // Called by operations between two phases. If it returns true, they roll back. May be empty.
  std::function<bool()> cancelled;
  // Called by `run` when the job has started. May be empty.
  std::function<void(const std::string& job)> started;
  // Cancels calls to repositories, even in the middle of a request.
  std::stop_token stop;
};

}  // namespace stasis::api
