// What a method of the service is given beside its request: on whose folders it works, with which
// settings, and whom it tells how far it is. The same for the daemon's worker and for the command
// line that works without a daemon.
#pragma once

#include <functional>
#include <string>

#include "base/paths.h"
#include "config/settings.h"

namespace google::protobuf {
class MessageLite;
}

namespace stasis::service {

struct Call {
  Paths paths;
  config::Settings settings;
  // An event of the method's stream; never called by two threads at once. Empty: nobody listens.
  std::function<void(const google::protobuf::MessageLite&)> emit;
  // Asked by operations between two phases; true undoes. Empty: never.
  std::function<bool()> cancelled;
};

}  // namespace stasis::service
