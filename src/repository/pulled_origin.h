// The origin of a pulled image (docs/decisions/image-trust.md) is its repository. The installation
// that pulled the image confirms this by the image's MAC.
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
// the repository with this Registration::origin_id. The key is independent of the installation's
// own origin key, so such a MAC does not claim that this installation wrote the memory.
store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& origin_id);

// A repository that was added, and the key of images that were pulled from it.
struct KnownOrigin {
  std::string repository;
  bool trusted = false;
  store::OriginKey key;
};
// Returns the origins of all repositories that the user has added; none if the user has no secret
// yet. Leaves out repositories whose registration cannot be read: their images are then not
// trusted.
Result<std::vector<KnownOrigin>> PulledOrigins(const Paths& paths);

// Returns the keys of images whose units dumps and pulls may reuse: the installation's own key, and
// the keys of trusted repositories. Creates the secret if there is none.
//
// A pull cannot make other units safe by checking their names: anyone who knows the naming secret,
// such as a holder of the joined master key, can forge a unit with the name of one of the user's
// units.
Result<std::vector<store::OriginKey>> SharableOrigins(const Paths& paths);
// Returns the keys of all images whose packs' indexes this installation wrote: its own images and
// pulled ones.
Result<std::vector<store::OriginKey>> IndexedHere(const Paths& paths);

}  // namespace stasis::repository
