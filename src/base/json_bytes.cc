#include "base/json_bytes.h"

#include <nlohmann/json.hpp>

#include "base/hex.h"

namespace stasis {

nlohmann::json EncodeBytes(const std::string& bytes) {
  nlohmann::json text = bytes;
  try {
    (void)text.dump();  // dump() is the library's only check for UTF-8
    return text;
  } catch (const nlohmann::json::exception&) {
    return {{"hex", HexOfBytes(bytes)}};
  }
}

std::optional<std::string> DecodeBytes(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains("hex") || !value["hex"].is_string())
    return std::nullopt;
  const auto& digits = value["hex"].get_ref<const std::string&>();
  std::string bytes = BytesOfHex(digits);
  if (bytes.empty() && !digits.empty()) return std::nullopt;
  return bytes;
}

}  // namespace stasis
