// Checks whether the container runtimes of this machine can checkpoint GPU programs with CRIU's
// plugin.
#pragma once

#include <string>
#include <vector>

#include "containers/command.h"
#include "containers/reference.h"

namespace stasis::containers {

// The files of the set-up. Tests use other paths.
struct SetupPaths {
  std::string criu_config;    // /etc/criu/default.conf
  std::string cdi_folder;     // /etc/cdi
  std::string plugin_folder;  // lib/stasis/criu of the installation
  std::string bundled_criu;   // the CRIU of the installation; empty if it has none
  std::string root;           // prefix for /proc and /run; empty: this machine's
};

// Returns the default paths of this installation.
Result<SetupPaths> UsualSetupPaths();

inline constexpr char kPlugin[] = "stasis_plugin.so";

// An observation, with its id in docs/check.md.
struct Observation {
  enum class Level : uint8_t { kOk, kNote, kWarning, kCannot };
  std::string id;
  Level level = Level::kOk;
  std::string found;
  std::string fix;  // empty if nothing needs fixing, or if the default fix of the finding applies
};

// For example, "1.1.5+ds1-1" is at least {1, 1}.
struct ProgramVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const ProgramVersion&) const = default;
};
// Returns the first version number in a text, such as the output of `criu --version`, or {0, 0} if
// there is none.
ProgramVersion FirstVersion(const std::string& text);
// Returns the first version number as text: "4.2.1".
std::string FirstVersionText(const std::string& text);

// The oldest CRIU that calls the plugin.
inline constexpr ProgramVersion kLeastCriu{4, 0};

// Returns true if `container setup` was run on this machine.
bool IsSetUp(const SetupPaths& paths);

// Checks the files of the set-up: CRIU's configuration, the plugin, the CDI specification.
std::vector<Observation> InspectSetup(const SetupPaths& paths);
// Checks the given runtimes, or all installed ones if the list is empty. A given runtime that is
// not installed results in kCannot.
std::vector<Observation> InspectRuntimes(CommandRunner& runner, const SetupPaths& paths,
                                         const Places& places, const std::vector<Runtime>& runtimes,
                                         const Deadline& deadline);

// Returns true if the legacy hook of NVIDIA's container toolkit has mounted the driver's files into
// a container. `mountinfo` is the text of /proc/PID/mountinfo. The hook always mounts
// /proc/driver/nvidia, and a CDI specification does not.
bool HasNvidiaHookMounts(const std::string& mountinfo);

}  // namespace stasis::containers
