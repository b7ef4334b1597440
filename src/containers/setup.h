// `stasis container setup` and `remove`: the lines in CRIU's configuration and the CDI
// specification.
#pragma once

#include <string>

#include "containers/inspect.h"

namespace stasis::containers {

// What a set-up or its removal changed.
struct SetupResult {
  bool criu_config_changed = false;
  bool cdi_changed = false;
};

// `library` is the agent's, by build id. Nothing is changed if one part is refused: all is checked
// before the first file is written. Doing it again changes nothing.
Result<SetupResult> SetUp(const SetupPaths& paths, const std::string& library);
// The agent's library stays: containers that run use it.
Result<SetupResult> RemoveSetup(const SetupPaths& paths);

}  // namespace stasis::containers
