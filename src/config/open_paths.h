// The directories of this user, derived from the settings.
//
//   run   root: /run/stasis       others: DATA/run                   folders.state: STATE/run
//   data  root: /var/lib/stasis   others: $XDG_STATE_HOME/stasis     folders.state: STATE/data
//                                         or ~/.local/state/stasis
//
// folders.run replaces `run`.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "config/settings.h"

namespace stasis::config {

// Returns the directories. Creates missing ones (mode 0700; DATA 0711). Returns kPermissionDenied
// if folders.run names a folder of another user, or one in which other users can write.
Result<Paths> OpenPaths(const Settings& settings);

// Returns the socket path of a daemon that this user starts.
Result<std::string> DaemonSocket(const Settings& settings);
// Returns the socket paths to try, in this order: the user's own daemon, then root's.
Result<std::vector<std::string>> DaemonSockets(const Settings& settings);

// Creates missing directories, accessible to this user only.
Status MakeFolders(const Paths& paths);

}  // namespace stasis::config
