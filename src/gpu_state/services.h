// The services that operations use, each behind an interface, so that tests can use fakes
// (gpu_state/testing). Only MakeServices creates the real ones.
#pragma once

#include <memory>
#include <string>

#include "agent_client/agent_link.h"
#include "base/paths.h"
#include "config/settings.h"
#include "dataplane/mover_pool.h"
#include "device/device_control.h"

namespace stasis::gpu_state {

struct Services {
  Paths paths;
  std::shared_ptr<device::DeviceControl> device;
  std::shared_ptr<agent_client::Agents> agents;
  std::shared_ptr<dataplane::MoverPool> movers;
  std::string stasis_version;
  config::Settings settings;
  // Time limit for returning a process to its recorded state. --timeout does not shorten it: a
  // phase is usually late because the data is large, and the undo takes as long.
  std::chrono::milliseconds undo_timeout() const {
    return config::Milliseconds(settings.undo_timeout_s);
  }
};

// Creates the services. Set `keep_arenas` if the caller uses them for several operations. Every
// helper inherits `inherit_fd` unless it is -1.
Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd = -1);
// Return options for callers that need only the driver. Without `paths`, the helper ends with its
// client. With `paths`, the resident helper of these paths is used if the settings allow it.
device::ControlOptions ControlOptionsOf(const config::Settings& settings);
device::ControlOptions ControlOptionsOf(const Paths& paths, const config::Settings& settings);

}  // namespace stasis::gpu_state
