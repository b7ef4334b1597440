// The rules for the contents of a manifest: safe paths, bounded sizes, consistent numbers. They are
// checked before a manifest is written and after it was read.
#pragma once

#include <string_view>

#include "base/result.h"
#include "store/manifest.h"

namespace stasis::store {

// Returns kInvalidArgument (Domain::kImage) if a rule is broken; the message names rule and field.
Status CheckManifest(const Manifest& manifest);

// Checks a file's path inside an image: FOLDER/NAME with a folder of kFolders and a plain name.
Status CheckFilePath(std::string_view path);

// Returns the features (limits.h) that follow from the contents: all but kFeatureOrigin.
uint64_t FeaturesOf(const Manifest& manifest);

// Returns whether `name` has 1 to 255 bytes, no '/' and no control character, and is neither "."
// nor "..".
bool IsPlainName(std::string_view name);

// Makes `text` safe for a terminal: invalid UTF-8 and control characters become '?'. Truncates it
// to `max_bytes`, but not inside a character.
std::string Printable(std::string_view text, size_t max_bytes = 200);

}  // namespace stasis::store
