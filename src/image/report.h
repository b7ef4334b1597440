// One image as a person or a script wants to see it: `stasis image inspect` and `verify`, each as
// text and as JSON. Text from an image is made fit for a terminal, and for JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "image/reader.h"

namespace stasis::image {

std::string InspectText(const ImageReader& image);
nlohmann::json InspectJson(const ImageReader& image);

std::string VerifyText(const ImageReader& image, const VerifyReport& report);
nlohmann::json VerifyJson(const ImageReader& image, const VerifyReport& report);

}  // namespace stasis::image
