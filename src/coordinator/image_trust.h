// Whose image may be restored by whom (docs/decisions/2026-11-22-whose-image-is-restored.md).
#pragma once

#include "base/caller.h"
#include "base/result.h"
#include "image/reader.h"

namespace stasis::coordinator {

// Before anything is touched: all of an image is its caller's or root's, and nobody else may write
// to it. Root restores only programs of his own, since CRIU would open a user's files, or what that
// user has put in their place, with root's rights; any other user only his. kPermissionDenied.
// `trusted`: the caller has said that he vouches for the image and for the files that it names.
Status CheckImageTrust(const image::ImageReader& image, const Caller& caller, bool trusted);

// Of CRIU's files at `images_dir`, whose bytes have been verified: they are made fit for a caller
// who is not root (criu/credentials.h), or, unless `trusted`, refused where they hold somebody else
// than root.
Status CheckCpuFiles(const std::string& images_dir, const Caller& caller, bool trusted);

}  // namespace stasis::coordinator
