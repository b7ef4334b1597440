// The master key of encrypted repositories: 32 random bytes, from which all other keys are derived.
//
//   key of a pack      HKDF-SHA-256(master, "stasis repository: pack key 1" + pack id)
//   key of an object   HKDF-SHA-256(master, "stasis repository: object key 1" + object id)
//   naming secret      HKDF-SHA-256(master, "stasis repository: names 1")
//   key id             the first 16 bytes of HMAC-SHA-256(master, "stasis repository: key id 1")
//
// HKDF is that of RFC 5869 without salt. No derived value reveals the master key or another one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/block_hash.h"
#include "base/id128.h"
#include "base/result.h"

namespace stasis::repository {

inline constexpr size_t kKeyBytes = 32;

// A key that is erased from memory by its destructor.
class SecretBytes {
 public:
  SecretBytes() = default;
  SecretBytes(const SecretBytes&) = default;
  SecretBytes& operator=(const SecretBytes&) = default;
  ~SecretBytes();

  uint8_t* data() { return bytes_.data(); }
  const uint8_t* data() const { return bytes_.data(); }
  std::string_view View() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  bool operator==(const SecretBytes&) const = default;

 private:
  std::array<uint8_t, kKeyBytes> bytes_{};
};

// Immutable. Safe to call from any thread.
class MasterKey {
 public:
  explicit MasterKey(const SecretBytes& bytes);
  // Returns a new key from the kernel's random numbers.
  static Result<MasterKey> Random();

  const SecretBytes& bytes() const { return bytes_; }
  // Identifies the key without revealing it.
  const Id128& id() const { return id_; }

  SecretBytes PackKey(const Id128& pack) const;
  SecretBytes ObjectKey(const Id128& object) const;
  // The secret of unit names (base/secret.h) for hosts that share this key.
  BlockSecret NamingSecret() const;

 private:
  SecretBytes bytes_;
  Id128 id_;
};

// Returns the first 32 bytes of HKDF-SHA-256 without salt.
SecretBytes Hkdf(std::string_view secret, std::string_view info);

}  // namespace stasis::repository
