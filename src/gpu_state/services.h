// What an operation works with. Made once by whoever runs operations (the CLI, later the daemon).
#pragma once

#include <memory>
#include <string>

#include "base/paths.h"
#include "config/settings.h"
#include "dataplane/resident.h"
#include "device/device_control.h"

namespace stasis::gpu_state {

struct Services {
  Paths paths;
  std::shared_ptr<device::DeviceControl> device;
  std::shared_ptr<dataplane::Resident> resident;  // movers and arenas
  std::string stasis_version;
  config::Settings settings;
  // For bringing a process back to where it was: nobody waits for it but the undo itself. The
  // driver moves 6 GB/s at best. Never shortened with the phases' own: a phase is mostly too slow
  // because the data is large, and it is as large on its way back.
  std::chrono::milliseconds undo_timeout() const {
    return config::Milliseconds(settings.undo_timeout_s);
  }
};

// Only the services, for who keeps them longer than one operation and puts them into the session of
// each. `inherit_fd` is held by every helper; -1: none.
Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd = -1);
// Options for a device control with a private helper.
device::ControlOptions ControlOptionsOf(const config::Settings& settings);
// The same with the resident helper of these paths, if the settings allow one.
device::ControlOptions ControlOptionsOf(const Paths& paths, const config::Settings& settings);

}  // namespace stasis::gpu_state
