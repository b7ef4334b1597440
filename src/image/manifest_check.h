// The rules that a manifest must keep whatever its bytes are: safe paths, bounded sizes, numbers
// that agree with each other. Asked before a manifest is written and after one was read.
#pragma once

#include <string_view>

#include "base/result.h"
#include "image/manifest.h"

namespace stasis::image {

// kInvalidArgument, Domain::kImage; the message says which rule which field breaks.
Status CheckManifest(const Manifest& manifest);

// A file's path inside an image is FOLDER/NAME with a folder of kFolders and a plain name: no "..",
// no empty part, no deeper folder, no control characters.
Status CheckFilePath(std::string_view path);

// The features (limits.h) that follow from what a manifest lists: all but kFeatureOrigin.
uint64_t FeaturesOf(const Manifest& manifest);

// The file systems' rule for one name: 1 to 255 bytes, no '/', neither "." nor "..", no control
// character (it will be printed).
bool IsPlainName(std::string_view name);

// `text` fit to be shown on a terminal: what is no UTF-8, or steers a terminal, becomes '?', and it
// is cut after `max_bytes`, between two characters.
std::string Printable(std::string_view text, size_t max_bytes = 200);

}  // namespace stasis::image
