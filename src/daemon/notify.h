// What a service manager is told: sd_notify(3), without its library.
#pragma once

#include <string>

namespace stasis::daemon {

// Sends `state` ("READY=1") where $NOTIFY_SOCKET says; nothing without.
void Notify(const std::string& state);

}  // namespace stasis::daemon
