// A user's secret: 32 random bytes in DATA/secret.key (mode 0600), created when first needed. The
// hashes of memory (block_hash.h), the names of units in images and the origin MAC of images use
// keys that are derived from it independently.
#pragma once

#include <optional>
#include <string>

#include "base/block_hash.h"
#include "base/paths.h"
#include "base/result.h"

namespace stasis {

std::string SecretPath(const Paths& paths);

// Returns the user's secret and creates it if there is none. Fails with kPermissionDenied if
// another user may have read or written the file.
Result<BlockSecret> BlockSecretOf(const Paths& paths);
// The same, but returns nullopt if there is none.
Result<std::optional<BlockSecret>> FindBlockSecret(const Paths& paths);

}  // namespace stasis
