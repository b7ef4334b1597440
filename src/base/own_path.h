// Opens paths from a user, in a process that may have more rights than the owners of the
// directories on the path. A symbolic link is followed only if it belongs to root or the caller;
// another user's link could redirect a write. A link to an open descriptor (/dev/stdout,
// /proc/PID/fd/1) is rejected, because it names a different file in each process. The kernel checks
// all other permissions of an unprivileged caller. Writing to a file with several hard links is
// also refused for root, because another user may have created one of the links.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

// open(2) under these rules, with O_CLOEXEC added. kPermissionDenied names the link and its owner
// (ELOOP) or the file with several hard links (EMLINK). kInvalidArgument (EBADF) means that the
// path names an open descriptor. Other errors are those of open(2).
Result<UniqueFd> OpenOwn(const std::string& path, int flags, mode_t mode = 0600);

// The parent directory of `path`, opened, and the last component. The caller must reject a link at
// the last component.
struct OwnPlace {
  UniqueFd folder;
  std::string name;
};
// Walks `path` under the rules above. The last component need not exist.
Result<OwnPlace> FindOwnPlace(const std::string& path);

// Checks that the directory and all its parents belong to the caller or root and that no other user
// can write to them, so that none of them can be replaced. Sticky directories such as /tmp are
// accepted. kPermissionDenied names the first directory that fails.
Status CheckOwnFolder(const std::string& path);

}  // namespace stasis
