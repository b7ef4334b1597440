// The server side of a mover. One thread reads requests (mover_protocol.h), a second one executes
// them in order. The process exits when its socket closes, whatever the second thread is doing.
//
// A resident mover also listens. Its first client uses the inherited socket; later clients are
// served one at a time, and a client that connects meanwhile is disconnected and starts its own
// mover. If a client disconnects in the middle of a request, the mover exits.
#pragma once

#include <chrono>
#include <string>

#include "device/device_control.h"

namespace stasis::dataplane {

struct MoverServerOptions {
  std::string library;  // driver library; empty: the loader's search
  device::GpuUuid gpu;
  // Exit after this time without a request (resident: without a client) if no GPU memory but the
  // context is held; 0: never.
  std::chrono::milliseconds idle_timeout{0};
  // Path of the listening socket (resident_mover.h); empty: not resident.
  std::string listen_path;
};

[[noreturn]] void ServeMover(int socket, const MoverServerOptions& options);

}  // namespace stasis::dataplane
