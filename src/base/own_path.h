// Paths that a user gave, opened by who may more than whoever owns what lies on the way.
//
// A symbolic link is followed when root or the caller made it; anybody else's could have been put
// there to have us write elsewhere. Of a caller who is not root the kernel sees to the rest; what
// root writes to is also no file that has a second name, since a user may have given it that.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

// open(2) of a path by these rules, O_CLOEXEC added. kPermissionDenied names the link and whose
// it is (ELOOP), or the file with two names (EMLINK); other errors are open's.
Result<UniqueFd> OpenOwn(const std::string& path, int flags, mode_t mode = 0600);

// The folder that the last word of `path` lies in, and that word; a link in its place is the
// opener's to refuse.
struct OwnPlace {
  UniqueFd folder;
  std::string name;
};
Result<OwnPlace> FindOwnPlace(const std::string& path);

// The folder is the caller's or root's, and so are all above it, so that nobody else can put
// another in its place: kPermissionDenied with the first that is not. Of folders like /tmp, where
// only the owner removes what is his, that is enough.
Status CheckOwnFolder(const std::string& path);

}  // namespace stasis
