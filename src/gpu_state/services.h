// The services that operations use, each behind an interface, so that their tests can use fakes
// (gpu_state/testing). MakeServices is the only place that makes the real ones.
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
  // phase is usually late because the data is large, and the way back takes as long.
  std::chrono::milliseconds undo_timeout() const {
    return config::Milliseconds(settings.undo_timeout_s);
  }
};

// For callers that keep the services for several operations. Every helper inherits `inherit_fd`;
// -1: none.
Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd = -1);
// For callers that need the driver only: with a helper that ends with its client, or with the
// resident helper of these paths, if the settings allow one.
device::ControlOptions ControlOptionsOf(const config::Settings& settings);
device::ControlOptions ControlOptionsOf(const Paths& paths, const config::Settings& settings);

}  // namespace stasis::gpu_state
