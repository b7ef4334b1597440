#include "base/json_bytes.h"

#include <nlohmann/json.hpp>

namespace stasis {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

nlohmann::json EncodeBytes(const std::string& bytes) {
  nlohmann::json text = bytes;
  try {
    (void)text.dump();  // dump() is the library's only check for UTF-8
    return text;
  } catch (const nlohmann::json::exception&) {
    std::string hex;
    for (unsigned char c : bytes) {
      hex += kDigits[c >> 4];
      hex += kDigits[c & 15];
    }
    return {{"hex", hex}};
  }
}

std::optional<std::string> DecodeBytes(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  auto it = value.is_object() ? value.find("hex") : value.end();
  if (!value.is_object() || it == value.end() || !it->is_string()) return std::nullopt;
  const auto& digits = it->get_ref<const std::string&>();
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    int high = HexDigit(digits[i]), low = HexDigit(digits[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace stasis
