// Converts text for protobuf, whose strings must be UTF-8. Paths and arguments need not be.
#pragma once

#include <string>

namespace stasis::api {

// Replaces each byte that is not part of valid UTF-8 with '?'.
std::string Utf8(std::string text);

}  // namespace stasis::api
