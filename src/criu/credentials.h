// Who the threads are that CRIU's images hold (core-*.img), before CRIU makes them.
#pragma once

#include <string>

#include "base/caller.h"
#include "base/result.h"

namespace stasis::criu {

// Makes the images ready to be restored with the rights of `caller`, who is not root. Every thread
// has to have all of its user and group ids from him, his very groups, and no capability:
// kPermissionDenied, with who is somebody else. The kernel would refuse most of that too, but for
// capabilities that CRIU itself has. And what a thread may never get back (its bounding set), which
// only root can take from it, becomes what the caller's is.
Status FitToCaller(const std::string& images_dir, const Caller& caller);

// The same of the bytes of one such file: what they are after that.
Result<std::string> FittedThread(const std::string& bytes, const Caller& caller);

// The first user id in the images that is not root's; root's when there is none. CRIU opens the
// files of whoever that is with the rights of who restores.
Result<uid_t> FindForeignUser(const std::string& images_dir);

}  // namespace stasis::criu
