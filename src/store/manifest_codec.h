// Encodes and decodes the protobuf body of a manifest. Only this file uses the generated types.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "store/manifest.h"

namespace stasis::store {

// Returns kInvalidArgument if the manifest breaks a rule of manifest_check.h or a bound of
// limits.h. Decodes the result again as a check.
Result<std::string> EncodeManifest(const Manifest& manifest);

// Checks numbers and sizes of the top-level records before anything is allocated for them. Returns
// kDataLoss if the bytes are not protobuf, kInvalidArgument if they break a rule.
Result<Manifest> DecodeManifest(std::string_view body);

}  // namespace stasis::store
