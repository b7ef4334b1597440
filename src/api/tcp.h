// The daemon's TCP listener, for callers on other machines. Both sides need a certificate.
#pragma once

#include <string>

#include "api/server_pool.h"
#include "base/result.h"

namespace stasis::api {

// Serves at `settings.daemon_listen` in a background thread, so that TCP traffic delays no caller
// on this machine. Sets `daemon.listen_address` to HOST:PORT with the actual port.
//
// gRPC (1.51) limits the duration of handshakes but not their number, so this file accepts the
// connections itself. After kHandshakeMs a connection has presented its certificate or is closed.
// Younger connections may come from any machine, so their number is limited.
Status ServeTcp(DaemonContext& daemon, ServerPool& servers);

// Reads the PEM file that the setting `what` names. Returns kPermissionDenied for a `secret` file
// that other users can read, or that belongs to a user other than root and the daemon's own user.
// Reads the descriptor that it has checked, and does not open the path again.
Result<std::string> ReadTlsFile(const char* what, const std::string& path, bool secret);

}  // namespace stasis::api
