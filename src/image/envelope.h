// The envelope around a manifest's protobuf body, by which any one byte changed, cut off or added
// is found, and a version from the future told from damage (docs/format/image.md):
//
//   offset  bytes
//   0       8    magic: 89 'S' 'T' 'A' 'S' 'I' 'S' 0A
//   8       4    format version
//   12      4    length of this header: 32
//   16      8    length n of the body
//   24      8    features that a reader must know: bits of limits.h
//   32      n    the body
//   32+n    48   with kFeatureOrigin: id of the origin key (16), HMAC-SHA-256 by that key of the
//                SHA-256 of all the bytes before these 48 (32)
//   end-16  16   XXH3-128 of all the bytes before it
//
// Numbers are little-endian. This header and the checksum at the very end stay in every version.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "image/origin.h"

namespace stasis::image {

inline constexpr size_t kEnvelopeHeaderBytes = 32;
inline constexpr size_t kEnvelopeBytes = kEnvelopeHeaderBytes + 16;
inline constexpr size_t kOriginBytes = 16 + 32;

// With `origin` the file gets an origin MAC by that key.
std::string SealEnvelope(std::string_view body, uint64_t features = 0,
                         const OriginKey* origin = nullptr);

// The body inside `file`, a view into it. `what` names the image in the error:
//   kDataLoss       not what was written
//   kUnimplemented  written whole by a version, or with features, that we do not read
Result<std::string_view> OpenEnvelope(std::string_view file, const std::string& what);

// The origin MAC of a file, and the digest that it is of.
struct OriginOfFile {
  OriginMac mac;
  Sha256Digest digest;
};
// `file` was accepted by OpenEnvelope. nullopt: it has no MAC.
std::optional<OriginOfFile> ReadOrigin(std::string_view file);

}  // namespace stasis::image
