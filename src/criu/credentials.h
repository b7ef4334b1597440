// Checks the credentials of threads in CRIU's images (core-*.img) before CRIU creates them.
#pragma once

#include <string>

#include "base/caller.h"
#include "base/result.h"

namespace stasis::criu {

// Prepares the images for a restore by `caller`, who is not root. Every thread must have exactly
// the caller's user and group ids and supplementary groups, and no capabilities; otherwise returns
// kPermissionDenied with the reason. The kernel alone would not enforce this, because CRIU has
// capabilities of its own. Also fills the capability bounding set of each thread, so that the
// restored thread keeps the caller's: only root can reduce it.
Status FitToCaller(const std::string& images_dir, const Caller& caller);

// Does the same for the bytes of one core file. Returns the new bytes.
Result<std::string> FittedThread(const std::string& bytes, const Caller& caller);

// Returns the first user id in the images that is not root's, or root's if there is none. CRIU
// opens the files of that user with the rights of the user who restores.
Result<uid_t> FindForeignUser(const std::string& images_dir);

}  // namespace stasis::criu
