// The server side of helper_protocol.h: executes requests on this process's driver, one thread for
// each request.
//
// A private helper serves the inherited socket and exits at its end. A resident helper serves one
// client at a time and disconnects others that connect meanwhile. It exits after an idle time, and
// after a client for which the driver returned an error that may outlast the request.
#pragma once

#include "ipc/helper_server.h"

namespace stasis::device::cuda {

// Serves ipc::kHelperSocketFd. When a client disconnects, driver calls in progress may continue for
// the settle time; then the process kills itself with SIGKILL.
[[noreturn]] void Serve(const ipc::HelperServerOptions& options);

}  // namespace stasis::device::cuda
