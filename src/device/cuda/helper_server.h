// The server side of helper_protocol.h: executes requests on this process's driver, one thread for
// each request, until the socket closes.
#pragma once

#include "ipc/helper_server.h"

namespace stasis::device::cuda {

// Serves ipc::kHelperSocketFd and never returns. The process exits at end-of-file, by SIGKILL if a
// driver call does not return within the settle time.
[[noreturn]] void Serve(const ipc::HelperServerOptions& options);

}  // namespace stasis::device::cuda
