// The server side of a mover. One thread reads requests (mover_protocol.h), a second one executes
// them in order. The process exits when its socket closes, whatever the second thread is doing.
//
// A resident mover also listens. Its first client uses the inherited socket; later clients are
// served one at a time, and a client that connects meanwhile is disconnected and starts its own
// mover. If a client disconnects in the middle of a request, the mover exits.
#pragma once

#include "ipc/helper_server.h"

namespace stasis::dataplane {

// Serves ipc::kHelperSocketFd. After the idle time the mover exits only if it holds no GPU memory
// except its context.
[[noreturn]] void ServeMover(const ipc::HelperServerOptions& options);

}  // namespace stasis::dataplane
