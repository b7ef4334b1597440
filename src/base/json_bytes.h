// Byte strings in JSON. Paths and arguments are bytes, but JSON strings are Unicode: valid UTF-8 is
// stored as a string and anything else as {"hex": "..."}. Decoding restores the exact bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace stasis {

// Returns a string for valid UTF-8, otherwise {"hex": "..."}.
nlohmann::json EncodeBytes(const std::string& bytes);
// Decodes either form. Returns nothing if `value` has neither of them.
std::optional<std::string> DecodeBytes(const nlohmann::json& value);

}  // namespace stasis
