// Finds the local images of a request.
#pragma once

#include <string>

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"
#include "store/image_reader.h"

namespace stasis::api {

// Returns the folder of images: `asked`, or the configured folder if `asked` is empty.
Result<std::string> StoreOf(const Call& call, const std::string& asked);
// Returns the path of an image. `image` is a path, or a name in the store.
Result<std::string> ImagePath(const Call& call, const std::string& store, const std::string& image);
// Returns the origin of the image, according to its MAC. Ignores an unusable key, because a restore
// reports why it is unusable.
v1::Origin OriginOf(const Call& call, const store::ImageReader& image);

}  // namespace stasis::api
