// Which image a caller may restore (docs/decisions/image-trust.md).
#pragma once

#include "base/caller.h"
#include "base/paths.h"
#include "base/result.h"
#include "store/image_reader.h"

namespace stasis::checks {

// Checked before anything is touched; kPermissionDenied:
// - A user restores only programs of that user.
// - All files of the image belong to the caller or to root, and nobody else may write to them.
// - The image was written by this installation, with the caller's secret (image/origin.h). Copying
//   an image makes its files the caller's, but not its MAC.
// - Root restores only root's programs: CRIU would open a user's files, or what that user has put
// in
//   their place, with root's rights.
// `trusted`: the caller vouches for the image and for the files that it names; only the first check
// is made.
Status CheckImageTrust(const store::ImageReader& image, const Caller& caller, const Paths& paths,
                       bool trusted);

// Of CRIU's files at `images_dir`, whose bytes have been verified: they are made fit for a caller
// who is not root (criu/credentials.h), or, unless `trusted`, refused where they hold somebody else
// than root.
Status CheckCpuFiles(const std::string& images_dir, const Caller& caller, bool trusted);

}  // namespace stasis::checks
