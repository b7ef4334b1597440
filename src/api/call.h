// The context of a method beside its request: folders, settings, progress and cancellation. It is
// the same in the daemon's worker and in a command that works without a daemon.
#pragma once

#include <functional>
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
  // Takes an event of the method's stream; never called by two threads at once. May be empty.
  std::function<void(const google::protobuf::MessageLite&)> emit;
  // Operations ask it between two phases, and roll back if it returns true. May be empty.
  std::function<bool()> cancelled;
};

}  // namespace stasis::api
