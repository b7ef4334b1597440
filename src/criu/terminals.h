// Terminals whose other side is outside of a dumped tree.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::criu {

// Makes every external terminal in a complete set of CRIU's images one of no session. As CRIU
// writes it, its replacement would have to be the controlling terminal of the session's leader, and
// that is a shell outside of the tree.
Status DetachTerminals(const std::string& images_dir);

}  // namespace stasis::criu
