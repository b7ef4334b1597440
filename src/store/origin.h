// Identifies the installation that wrote an image: a message authentication code (MAC) over the
// manifest, by a key that only the owner of a state folder has (docs/decisions/image-trust.md).
#pragma once

#include <cstdint>
#include <optional>

#include "base/block_hash.h"
#include "base/id128.h"
#include "base/paths.h"
#include "base/result.h"
#include "base/sha256.h"

namespace stasis::store {

// The MAC as stored in a manifest's file (envelope.h).
struct OriginMac {
  Id128 key_id;
  Sha256Digest mac;
};

// The key of the MAC. It is derived from the user's secret independently of the block key, so unit
// names reveal nothing about it, and MACs reveal nothing about the block key.
class OriginKey {
 public:
  explicit OriginKey(const BlockSecret& secret);

  // Identifies the key without revealing it.
  const Id128& id() const { return id_; }
  OriginMac Sign(const Sha256Digest& digest) const;
  bool Verify(const OriginMac& origin, const Sha256Digest& digest) const;

 private:
  Sha256Digest key_;
  Id128 id_;
};

enum class Origin : uint8_t {
  kOwn,      // written with this key, and unchanged since
  kChanged,  // names this key, but its MAC is wrong: the manifest was changed
  kOther,    // written with another key
  kUnknown,  // has no MAC
};

// Returns the origin key of the user's secret (base/secret.h). Creates the secret if there is none.
Result<OriginKey> OriginKeyOf(const Paths& paths);
// The same, but returns nullopt if there is no secret.
Result<std::optional<OriginKey>> FindOriginKey(const Paths& paths);

}  // namespace stasis::store
