// `stasis container setup` and `remove`: the lines in CRIU's configuration and the CDI
// specification.
#pragma once

#include <string>

#include "containers/inspect.h"

namespace stasis::containers {

// The changes of a set-up or of its removal.
struct SetupResult {
  bool criu_config_changed = false;
  bool cdi_changed = false;
};

// Sets up containers. `library` is the path of the agent's library, in the folder of its build id.
// All checks come before the first write, so a set-up that is refused changes nothing. A repeated
// set-up changes nothing either.
Result<SetupResult> SetUp(const SetupPaths& paths, const std::string& library);
// Removes the set-up. Keeps the agent's library, because running containers use it.
Result<SetupResult> RemoveSetup(const SetupPaths& paths);

}  // namespace stasis::containers
