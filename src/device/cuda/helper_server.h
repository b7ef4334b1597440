// The device helper's side of helper_protocol.h: executes requests on the driver of this process,
// each on a thread of its own, until its socket ends.
#pragma once

#include <chrono>
#include <string>

namespace stasis::device::cuda {

struct ServerOptions {
  std::string library;  // empty: by the loader's search
  // How long requests that the driver still works on may take after the client has gone.
  std::chrono::milliseconds settle_timeout{10000};
};

// Serves `socket` and never returns: the process ends at end-of-file, by SIGKILL when a driver call
// does not come back.
[[noreturn]] void Serve(int socket, const ServerOptions& options);

}  // namespace stasis::device::cuda
