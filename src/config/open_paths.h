// Where the folders of this user are, by the settings.
//
//   run   root: /run/stasis       others: DATA/run                   folders.state: STATE/run
//   data  root: /var/lib/stasis   others: $XDG_STATE_HOME/stasis     folders.state: STATE/data
//                                         or ~/.local/state/stasis
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "config/settings.h"

namespace stasis::config {

// Makes the folders that are missing (mode 0700; DATA 0711).
Result<Paths> OpenPaths(const Settings& settings);

// Where a daemon that this user starts listens.
Result<std::string> DaemonSocket(const Settings& settings);
// Where this user's commands look for one, the first that is there: the user's own, then root's.
Result<std::vector<std::string>> DaemonSockets(const Settings& settings);

// Makes the folders that are not there yet, for their user only.
Status MakeFolders(const Paths& paths);

}  // namespace stasis::config
