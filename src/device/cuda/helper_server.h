// The server side of helper_protocol.h: executes requests on this process's driver, one thread for
// each request, until the socket closes.
#pragma once

#include <chrono>
#include <string>

namespace stasis::device::cuda {

struct ServerOptions {
  std::string library;  // empty: the loader's search
  // How long driver calls in progress may continue after the client has disconnected.
  std::chrono::milliseconds settle_timeout{10000};
};

// Serves `socket` and never returns. The process exits at end-of-file, by SIGKILL if a driver call
// does not return.
[[noreturn]] void Serve(int socket, const ServerOptions& options);

}  // namespace stasis::device::cuda
