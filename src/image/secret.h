// A user's secret: 32 random bytes in DATA/secret.key (mode 0600), made when they are first needed.
// The names of blocks (image/block_name.h) and the origin MAC of images (image/origin.h) come from
// it, by keys that are derived apart from each other.
#pragma once

#include <optional>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "image/block_name.h"
#include "image/origin.h"

namespace stasis::image {

std::string SecretPath(const Paths& paths);

// kPermissionDenied when somebody else may have read or written the file.
Result<BlockSecret> BlockSecretOf(const Paths& paths);
Result<OriginKey> OriginKeyOf(const Paths& paths);
// The same, but no secret is made: nullopt when there is none.
Result<std::optional<OriginKey>> FindOriginKey(const Paths& paths);

}  // namespace stasis::image
