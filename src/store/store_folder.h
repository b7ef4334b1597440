// A folder that holds images, one sub-folder each, and hidden ones on their way to or from being
// one (image/image_folder.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::store {

// Returns the path of an image. A text with a '/' is a path, any other a name in one of `stores`,
// which are searched in order. kNotFound names them.
Result<std::string> ResolveImage(const std::vector<std::string>& stores,
                                 const std::string& name_or_path);

// Names of the images in a store: sub-folders that are not hidden and hold a manifest, whole or
// not. Their names need not be those of images (CheckImageName): a folder that its user renamed may
// share packs with others, and gc has to see it. A store that does not exist holds none.
Result<std::vector<std::string>> ListImages(const std::string& store);

// Removes what a killed writer, deleter or restore left behind; what is still worked on is left
// alone. With a purpose (image/image_folder.h): only what was for that. Returns the names removed.
// `at_work` is called with the path of each hidden folder before it is removed, and behind each
// file of it that has gone.
Result<std::vector<std::string>> SweepPartials(
    const std::string& store, std::string_view purpose = {},
    const std::function<void(const std::string& folder)>& at_work = nullptr);

// Hides the image in one step, then removes it. kInvalidArgument when `path` is no image (a folder
// with a manifest and nothing but an image's parts; a damaged one may be deleted), kAborted while
// it is being read.
// `before_step` is called with "hide" and "remove"; for tests, which fail and die there. `removed`
// is called behind each file that has gone.
Status DeleteImage(const std::string& path,
                   const std::function<Status(std::string_view step)>& before_step = nullptr,
                   const std::function<void()>& removed = nullptr);

// kResourceExhausted now rather than later when fewer than `needed_bytes` are free at `path`.
Status CheckSpace(const std::string& path, uint64_t needed_bytes);

}  // namespace stasis::store
