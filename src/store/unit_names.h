// The name of a unit (4 KiB page, 2 MiB block) in images: the universal hash of its contents
// (base/block_hash.h), encrypted with AES-256 by a key of the same user. The hash is linear in its
// key, so a few hundred known pages and their hashes would reveal the key to any reader of an
// image, who could then construct different pages with the same name. AES is a permutation, so
// equal names still mean equal hashes.
#pragma once

#include <span>

#include "base/block_hash.h"
#include "base/id128.h"
#include "base/result.h"
#include "base/sha256.h"

namespace stasis::store {

inline constexpr char kUnitNameFunction[] = "poly127-4k-aes256";

// Safe to call from any thread.
class UnitNames {
 public:
  explicit UnitNames(const BlockSecret& secret);

  // The key of the hash, which also identifies these names in a manifest.
  const BlockKey& key() const { return key_; }
  // Turns hashes into unit names. Pass many hashes at once, because each call expands the AES key.
  Status Encrypt(std::span<Id128> hashes) const;
  // The name of one unit of 1 byte to 2 MiB.
  Result<Id128> NameOf(std::string_view unit) const;

 private:
  BlockKey key_;
  Sha256Digest aes_key_;
};

}  // namespace stasis::store
