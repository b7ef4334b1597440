// The daemon's TCP listener, for callers on other machines. Both sides need a certificate.
#pragma once

#include <string>

#include "api/server_pool.h"
#include "base/result.h"

namespace stasis::api {

// Serves at `settings.daemon_listen` in a background thread, so that TCP traffic delays no caller
// on this machine. Sets `daemon.listen_address` to HOST:PORT with the actual port.
//
// gRPC (1.51) bounds the duration of handshakes but not their number, so this file accepts the
// connections itself. A connection that is older than kHandshakeMs has shown its certificate or is
// closed; younger ones may be anybody's, and their number is limited.
Status ServeTcp(DaemonContext& daemon, ServerPool& servers);

// Reads the PEM file that the setting `what` names. kPermissionDenied if it is `secret` and others
// can read it, or it belongs to another user than root and the daemon's own. The text comes from
// the very descriptor that was checked.
Result<std::string> ReadTlsFile(const char* what, const std::string& path, bool secret);

}  // namespace stasis::api
