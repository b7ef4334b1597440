// One image as a person or a script wants to see it: `stasis image inspect` and `verify`, each as
// text and as JSON. Text from an image is made fit for a terminal, and for JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "store/image_reader.h"

namespace stasis::store {

// `key`: the reading user's own, nullptr without one; it says whether that user wrote the image.
std::string InspectText(const ImageReader& image, const OriginKey* key = nullptr);
nlohmann::json InspectJson(const ImageReader& image, const OriginKey* key = nullptr);

std::string VerifyText(const ImageReader& image, const VerifyReport& report,
                       const OriginKey* key = nullptr);
nlohmann::json VerifyJson(const ImageReader& image, const VerifyReport& report,
                          const OriginKey* key = nullptr);

}  // namespace stasis::store
