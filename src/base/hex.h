// Converts bytes to and from lower-case hexadecimal text.
#pragma once

#include <string>
#include <string_view>

namespace stasis {

std::string HexOfBytes(std::string_view bytes);
// Returns an empty string if `hex` is not an even number of hexadecimal digits.
std::string BytesOfHex(std::string_view hex);

}  // namespace stasis
