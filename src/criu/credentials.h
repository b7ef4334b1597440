// Checks the credentials of threads in CRIU's images (core-*.img) before CRIU creates them.
#pragma once

#include <string>

#include "base/caller.h"
#include "base/result.h"

namespace stasis::criu {

// Prepares the images for a restore by `caller`, who is not root. Returns kPermissionDenied with
// the reason unless every thread has the user id of the caller, only groups of the caller, and no
// capabilities. The kernel alone would not enforce this, because CRIU has capabilities. Also fills
// the capability bounding set of each thread in the images, because only root could reduce the set;
// the restored thread has the caller's set.
Status FitToCaller(const std::string& images_dir, const Caller& caller);

// Like FitToCaller, for the bytes of one core file. Returns the new bytes.
Result<std::string> FittedThread(const std::string& bytes, const Caller& caller);

// Returns the first user id in the images that is not root's, or root's id if there is none. CRIU
// would open the files of that user with the rights of the user who restores.
Result<uid_t> FindForeignUser(const std::string& images_dir);

}  // namespace stasis::criu
