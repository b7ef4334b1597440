// The daemon's door for callers of other machines: TCP, both sides with a certificate.
#pragma once

#include "base/result.h"
#include "daemon/doors.h"

namespace stasis::daemon {

// Serves at `settings.daemon_listen` from here on, in a thread of its own: what comes over TCP
// keeps nobody waiting who is on this machine. `house.listen` is HOST:PORT as it is.
//
// gRPC (1.51) bounds the time of a handshake and not how many there are, so connections are
// accepted here. One that is older than a handshake may last has shown its certificate, or is
// closed: so those that are younger are the ones of which nothing is known, and few of them are
// let in at a time.
Status ServeTcp(House& house, Doors& doors);

}  // namespace stasis::daemon
