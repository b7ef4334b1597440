// Handles terminals whose master side is outside of a dumped tree.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::criu {

// Rewrites complete CRIU images so that external terminals belong to no session. Otherwise CRIU
// would search the tree for a session leader that is outside of it, such as a shell, and fail. If
// the session leader is in the images, its controlling terminal keeps its session: at the restore
// the leader gets the replacement as its controlling terminal, with the same foreground process
// group.
Status DetachTerminals(const std::string& images_dir);

}  // namespace stasis::criu
