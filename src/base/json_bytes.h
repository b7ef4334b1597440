// Bytes in JSON. Paths and arguments are bytes, JSON is Unicode: what is UTF-8 is a string,
// anything else becomes {"hex": "..."}, and both come back as they were.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace stasis {

nlohmann::json EncodeBytes(const std::string& bytes);
// Absent when `value` is neither of the two.
std::optional<std::string> DecodeBytes(const nlohmann::json& value);

}  // namespace stasis
