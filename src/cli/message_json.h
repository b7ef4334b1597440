// Converts a message of the API to JSON.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace stasis::cli {

// Returns an object with every field of the message under its own name. An absent optional field or
// message becomes null. 64-bit integers become numbers, not strings.
nlohmann::json MessageJson(const google::protobuf::Message& message);

}  // namespace stasis::cli
