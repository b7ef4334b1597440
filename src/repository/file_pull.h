// Fetches the files of an image, except memory, into a new local image.
#pragma once

#include "base/result.h"
#include "repository/unit_pull.h"
#include "store/image_writer.h"

namespace stasis::repository {

// Creates all files of the image. Checks each part, including its name if the name is known.
Status PullFiles(const PullContext& context, store::ImageWriter& writer);

}  // namespace stasis::repository
