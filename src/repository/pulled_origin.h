// The origin of pulled images (docs/decisions/image-trust.md): the repository, as witnessed by the
// installation that pulled them.
#pragma once

#include "base/block_hash.h"
#include "base/id128.h"
#include "store/origin.h"

namespace stasis::repository {

// Returns the key of the origin MAC of images that the installation with this secret pulled from
// this repository. It is independent of the installation's own origin key: such a MAC does not say
// that this installation wrote the memory.
store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& repository);

}  // namespace stasis::repository
