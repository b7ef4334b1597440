// The origin of pulled images (docs/decisions/image-trust.md): the repository, as witnessed by the
// installation that pulled them.
#pragma once

#include <string>
#include <vector>

#include "base/block_hash.h"
#include "base/id128.h"
#include "base/paths.h"
#include "base/result.h"
#include "store/origin.h"

namespace stasis::repository {

// Returns the key of the origin MAC of images that the installation with this secret pulled from
// this repository. It is independent of the installation's own origin key: such a MAC does not say
// that this installation wrote the memory.
store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& repository);

// A repository that was added, and the key of images that were pulled from it.
struct KnownOrigin {
  std::string repository;
  bool trusted = false;
  store::OriginKey key;
};
// Returns those of all repositories that the user has added; none if the user has no secret yet.
Result<std::vector<KnownOrigin>> PulledOrigins(const Paths& paths);

// Returns the keys of all images whose files and indexes this installation wrote itself: its own
// ones and pulled ones. Dumps and pulls share units with these. Creates the secret if there is
// none.
Result<std::vector<store::OriginKey>> WrittenHere(const Paths& paths);

}  // namespace stasis::repository
