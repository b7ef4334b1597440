#include "base/hex.h"

#include <charconv>

namespace stasis {

std::string HexOfBytes(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string BytesOfHex(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    unsigned byte = 0;
    std::string_view pair = hex.substr(at, 2);
    auto [end, error] = std::from_chars(pair.data(), pair.data() + pair.size(), byte, 16);
    if (pair.size() != 2 || error != std::errc() || end != pair.data() + 2) return {};
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace stasis
