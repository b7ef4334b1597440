// A file that names an image of a store. Another folder, such as CRIU's image folder, contains this
// file instead of the image itself:
//
//   {"format": 1, "image": "/var/lib/stasis/images/NAME", "image_id": "32 hex digits"}
#pragma once

#include <string>

#include "base/id128.h"
#include "base/result.h"

namespace stasis::store {

inline constexpr char kReferenceName[] = "reference.json";

struct ImageReference {
  std::string image;  // absolute path
  Id128 image_id;
};

// Creates FOLDER/reference.json and, if it is missing, FOLDER.
Status WriteReference(const std::string& folder, const ImageReference& reference);

// Returns the path of the image that FOLDER/reference.json names. This is the recorded path or, if
// the image is not there, the same name in `store`, because the store may be at another path on
// this machine. Returns FOLDER itself if there is no such file, kNotFound if the image is at
// neither path, kDataLoss if the file is damaged, and kUnimplemented for a format of a later
// version.
Result<std::string> FollowReference(const std::string& folder, const std::string& store);

}  // namespace stasis::store
