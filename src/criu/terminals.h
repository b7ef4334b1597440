// Terminals whose other side is outside of a dumped tree.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::criu {

// Makes every external terminal in a complete set of CRIU's images one of no session, but for the
// controlling one of a session whose leader is in the images: that leader gets its replacement as
// its controlling terminal again, with the same process group in the foreground. Of a session that
// a shell outside of the tree leads, CRIU would look for the leader in the tree, and fail.
Status DetachTerminals(const std::string& images_dir);

}  // namespace stasis::criu
