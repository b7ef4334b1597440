// The envelope around a manifest's protobuf body. It detects any changed, missing or additional
// byte, and distinguishes a later format version from damage (docs/format/image.md):
//
//   offset  bytes
//   0       8    magic: 89 'S' 'T' 'A' 'S' 'I' 'S' 0A
//   8       4    format version
//   12      4    length of this header: 32
//   16      8    length n of the body
//   24      8    features that a reader must support: bits of limits.h
//   32      n    the body
//   32+n    48   with kFeatureOrigin: id of the origin key (16), HMAC-SHA-256 by that key of the
//                SHA-256 of all the bytes before these 48 (32)
//   end-16  16   XXH3-128 of all the bytes before it
//
// Numbers are little-endian. Every version keeps this header and the checksum at the very end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "store/origin.h"

namespace stasis::store {

inline constexpr size_t kEnvelopeHeaderBytes = 32;
inline constexpr size_t kEnvelopeBytes = kEnvelopeHeaderBytes + 16;
inline constexpr size_t kOriginBytes = 16 + 32;

// Adds an origin MAC if `origin` is not nullptr.
std::string SealEnvelope(std::string_view body, uint64_t features = 0,
                         const OriginKey* origin = nullptr);

// Returns a view of the body in `file`. `what` names the image in errors:
//   kDataLoss       the file is damaged
//   kUnimplemented  the file is intact, but this Stasis does not support its version or features
Result<std::string_view> OpenEnvelope(std::string_view file, const std::string& what);

// The origin MAC of a file, and the digest that it authenticates.
struct OriginOfFile {
  OriginMac mac;
  Sha256Digest digest;
};
// Returns the MAC of `file`, or nullopt if it has none. OpenEnvelope must have accepted `file`.
std::optional<OriginOfFile> ReadOrigin(std::string_view file);

}  // namespace stasis::store
