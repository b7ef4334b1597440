// Implements the client side of sd_notify(3) without its library.
#pragma once

#include <string>

namespace stasis::api {

// Sends `state`, for example "READY=1", to $NOTIFY_SOCKET. Does nothing if the variable is not set.
void NotifyServiceManager(const std::string& state);

}  // namespace stasis::api
