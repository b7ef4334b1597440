// The mover's own side: reads requests (mover_protocol.h), does them one after another on a second
// thread, and ends with its socket at any moment, whatever that thread is in.
#pragma once

#include <chrono>
#include <string>

#include "device/device_control.h"

namespace stasis::dataplane {

struct MoverServerOptions {
  std::string library;  // of the driver; empty: by the loader's search
  device::GpuUuid gpu;
  // Ends after so long without a request while it holds no GPU memory but its context; 0: never.
  std::chrono::milliseconds idle_timeout{0};
};

[[noreturn]] void ServeMover(int socket, const MoverServerOptions& options);

}  // namespace stasis::dataplane
