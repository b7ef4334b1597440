// Manifest <-> the bytes of its protobuf body. The only file that knows the generated types.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "image/manifest.h"

namespace stasis::image {

// kInvalidArgument when the manifest breaks a rule of manifest_check.h or a bound of limits.h. What
// is returned is known to decode again.
Result<std::string> EncodeManifest(const Manifest& manifest);

// Numbers and sizes of the top-level records are counted before anything is allocated for them.
// kDataLoss when the bytes are no protobuf, kInvalidArgument when they break a rule.
// `format` is the envelope's version.
Result<Manifest> DecodeManifest(std::string_view body, uint32_t format = kFormatVersion);

}  // namespace stasis::image
