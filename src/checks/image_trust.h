// Decides which images a caller may restore (docs/decisions/image-trust.md).
#pragma once

#include "base/caller.h"
#include "base/paths.h"
#include "base/result.h"
#include "repository/registry.h"
#include "store/image_reader.h"

namespace stasis::checks {

// Returns kPermissionDenied unless all of these hold:
// - The program's user is the caller, or the caller is root.
// - All files of the image belong to the caller or to root, and no other user may write to them.
// - This installation wrote the image, with the caller's secret (store/origin.h), or pulled it from
//   a repository that the caller trusts. Ownership of the files is not sufficient, because a user
//   who copies a foreign image owns the copy.
// - If the caller is root, the program is root's too. Otherwise CRIU would open files that another
//   user can replace, with root's privileges.
// With `trusted`, the caller vouches for the image and the files that it names, and only the first
// condition is checked.
Status CheckImageTrust(const store::ImageReader& image, const Caller& caller, const Paths& paths,
                       bool trusted);

// Checks an image of a repository before it is pulled: the program's user, and whether the caller
// trusts the repository. `name` is the name of the image in the repository. CheckImageTrust() must
// follow after the pull.
Status CheckRemoteTrust(const store::Manifest& manifest, const std::string& name,
                        const repository::Registration& registration, const Caller& caller,
                        bool trusted);

// Checks CRIU's files in `images_dir`, whose bytes have been verified. For a caller other than
// root, adapts them to the caller (criu/credentials.h). For root, refuses processes of other users
// unless `trusted`.
Status CheckCpuFiles(const std::string& images_dir, const Caller& caller, bool trusted);

}  // namespace stasis::checks
