// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) for short messages such as a manifest or a key.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace stasis {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view message);

// `key` must have at most 64 bytes (asserted).
Sha256Digest HmacSha256(std::string_view key, std::string_view message);

inline std::string_view View(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace stasis
