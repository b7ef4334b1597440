#include "gpu_state/services.h"

#include "base/install_layout.h"
#include "dataplane/resident.h"

namespace stasis::gpu_state {

device::ControlOptions ControlOptionsOf(const config::Settings& settings) {
  device::ControlOptions control;
  control.library = settings.cuda_library;
  control.settle_timeout = config::Milliseconds(settings.settle_timeout_s);
  return control;
}

device::ControlOptions ControlOptionsOf(const Paths& paths, const config::Settings& settings) {
  device::ControlOptions control = ControlOptionsOf(settings);
  control.resident_dir = paths.helpers();
  control.idle_timeout = config::Milliseconds(settings.helper_idle_s);
  return control;
}

Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd) {
  device::ControlOptions control =
      keep_arenas ? ControlOptionsOf(settings) : ControlOptionsOf(paths, settings);
  control.inherit_fd = inherit_fd;
  dataplane::MoverOptions mover;
  if (auto program = LibexecProgram("stasis-mover")) mover.program = *program;
  mover.library = settings.cuda_library;
  mover.inherit_fd = inherit_fd;
  // Resident movers use the default driver library.
  if (settings.helper_idle_s > 0 && !keep_arenas && mover.library.empty()) {
    mover.resident_dir = paths.helpers();
    mover.idle_timeout = config::Milliseconds(settings.helper_idle_s);
  }
  // AgentsInProcesses() returns a static object, so the pointer must not delete it.
  std::shared_ptr<agent_client::Agents> agents(&agent_client::AgentsInProcesses(),
                                               [](agent_client::Agents*) {});
  return {paths,
          device::MakeDeviceControl(control),
          std::move(agents),
          std::make_shared<dataplane::Resident>(std::move(mover), keep_arenas, paths.helpers()),
          stasis_version,
          settings};
}

}  // namespace stasis::gpu_state
