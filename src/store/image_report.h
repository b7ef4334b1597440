// Describes an image as a JSON document, for `stasis image inspect --json`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "store/image_reader.h"

namespace stasis::store {

// Returns "2026-11-20T05:47:55Z".
std::string Utc(int64_t unix_ns);
uint64_t DeviceBytes(const Manifest& manifest);
// Returns "own", "changed", "other" or "unknown".
const char* OriginName(Origin origin);

// `key` is the origin key of the user who reads the report, or nullptr. With the key, the report
// shows whether this user wrote the image.
nlohmann::json InspectJson(const ImageReader& image, const OriginKey* key = nullptr);
// Describes an image that is not in a folder of this machine. Its origin is unknown. `path` is the
// name that the report shows.
nlohmann::json InspectJson(const Manifest& manifest, const std::string& path);

}  // namespace stasis::store
