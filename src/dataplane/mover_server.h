// The mover's own side: reads requests (mover_protocol.h), does them one after another on a second
// thread, and ends with its socket at any moment, whatever that thread is in.
//
// One that stays listens besides: its first client has the socket it was started with, the next
// ones come one at a time, and whoever comes meanwhile is turned away and starts a mover of his
// own. When a client goes without a word in the middle of its work, it ends as any other does.
#pragma once

#include <chrono>
#include <string>

#include "device/device_control.h"

namespace stasis::dataplane {

struct MoverServerOptions {
  std::string library;  // of the driver; empty: by the loader's search
  device::GpuUuid gpu;
  // Ends after so long without a request (one that stays: without a client) while it holds no GPU
  // memory but its context; 0: never.
  std::chrono::milliseconds idle_timeout{0};
  // The name of the socket that it is to listen on (resident_mover.h); empty: it does not stay.
  std::string listen_path;
};

[[noreturn]] void ServeMover(int socket, const MoverServerOptions& options);

}  // namespace stasis::dataplane
