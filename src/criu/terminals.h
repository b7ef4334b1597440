// Terminals whose master side is outside of a dumped tree.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::criu {

// Rewrites complete CRIU images so that external terminals belong to no session. Exception: the
// controlling terminal of a session whose leader is in the images; the leader gets the replacement
// as its controlling terminal, with the same foreground process group. CRIU would otherwise look in
// the tree for a session leader outside of it, such as a shell, and fail.
Status DetachTerminals(const std::string& images_dir);

}  // namespace stasis::criu
