// The secret behind the names of a user's blocks: one file in Paths::data, made when it is first
// needed.
#pragma once

#include "base/paths.h"
#include "image/block_name.h"

namespace stasis::coordinator {

Result<image::BlockSecret> BlockSecretOf(const Paths& paths);

}  // namespace stasis::coordinator
