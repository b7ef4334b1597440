// The secrets in a user's state folder, files of 32 random bytes and mode 0600.
//
//   DATA/secret.key  created when first needed. The key of the origin MAC of images is derived from
//                    it. So are the keys for hashes of memory (block_hash.h) and for names of
//                    units in images, unless there is a naming secret
//   DATA/names.key   the naming secret, which `stasis key join` derives from a master key. Hosts
//                    that share it find each other's units. Hashes and names of units then use it
//
// docs/decisions/joined-names.md says why the origin MAC never uses the naming secret.
#pragma once

#include <optional>
#include <string>

#include "base/block_hash.h"
#include "base/paths.h"
#include "base/result.h"

namespace stasis {

std::string SecretPath(const Paths& paths);
std::string NamingSecretPath(const Paths& paths);

// Returns the user's secret and creates it if there is none. Fails with kPermissionDenied if
// another user may have read or written the file.
Result<BlockSecret> BlockSecretOf(const Paths& paths);
// Returns the user's secret, or nullopt if there is none. Fails like BlockSecretOf.
Result<std::optional<BlockSecret>> FindBlockSecret(const Paths& paths);

// Returns the secret with which hashes and unit names are made: the one that belongs to the master
// key of this user, or BlockSecretOf() if there is none. An image must use one secret throughout,
// so a dump calls this once.
Result<BlockSecret> NamingSecretOf(const Paths& paths);
// Returns the naming secret of a master key, or nullopt if this user has not joined one.
Result<std::optional<BlockSecret>> FindJoinedSecret(const Paths& paths);
// Stores the naming secret of a master key, and replaces an earlier one. Returns false if the
// stored secret is the same already. Fails, like FindJoinedSecret, if the existing file cannot be
// used.
Result<bool> JoinNamingSecret(const Paths& paths, const BlockSecret& secret);

}  // namespace stasis
