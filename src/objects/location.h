// Parses locations of objects, as users write them, and opens the stores there.
#pragma once

#include <memory>
#include <string>

#include "objects/object_store.h"
#include "objects/s3/s3_store.h"

namespace stasis::objects {

struct Location {
  enum class Kind : uint8_t { kFolder, kS3 };
  Kind kind = Kind::kFolder;
  std::string folder;  // absolute, without a slash at its end
  std::string bucket;
  std::string prefix;  // without slashes at its ends; may be empty

  // Returns a text that ParseLocation() accepts.
  std::string ToString() const;
};

// Parses "s3://BUCKET", "s3://BUCKET/PREFIX" or the absolute path of a folder. Slashes at the end
// are ignored. Returns kInvalidArgument for anything else.
Result<Location> ParseLocation(const std::string& text);

// Opens the store. A folder must exist; nothing is sent to an S3 server. `options` are for S3 only.
Result<std::unique_ptr<ObjectStore>> OpenObjectStore(const Location& location,
                                                     const s3::S3Options& options);

}  // namespace stasis::objects
