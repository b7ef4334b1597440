// A folder of images. Each image is a sub-folder; images that are being written, deleted or
// restored have hidden sub-folders (store/image_folder.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::store {

// Returns the path of an image. A text with a '/' is a path; any other text is a name, which is
// searched in `stores` in order. The message of kNotFound names the stores.
Result<std::string> ResolveImage(const std::vector<std::string>& stores,
                                 const std::string& name_or_path);

// Returns the names of the images in a store: sub-folders that are not hidden and have a manifest,
// which may be damaged. The names need not be valid (CheckImageName): an image that the user has
// renamed may share packs with others, and gc must find it. A missing store has no images.
Result<std::vector<std::string>> ListImages(const std::string& store);

// Removes hidden folders that killed processes left behind, but none that is in use. If `purpose`
// (store/image_folder.h) is not empty, removes only folders for this purpose. With the hidden
// folder of a killed migration, also deletes its images, except the newest. Returns the removed
// hidden names. Calls `at_work` with the path of each folder before it is removed, and again after
// each removed file.
Result<std::vector<std::string>> SweepPartials(
    const std::string& store, std::string_view purpose = {},
    const std::function<void(const std::string& folder)>& at_work = nullptr);

// Waits until no process holds the lock of a hidden folder of the image. The helper processes of a
// killed command hold these locks until they have ended too. The wait has no time limit, so call
// this inside AskBounded.
Status AwaitPartialsOf(const std::string& store, const std::string& image_name);

// Hides the image with one rename, then removes it. Returns kInvalidArgument if `path` is not an
// image (a folder that has a manifest, which may be damaged, and only the parts of an image), and
// kAborted if the image is being read.
// Calls `before_step` with "hide" and "remove", for tests, which return an error or kill the
// process there. Calls `removed` after each removed file.
Status DeleteImage(const std::string& path,
                   const std::function<Status(std::string_view step)>& before_step = nullptr,
                   const std::function<void()>& removed = nullptr);

// Returns kResourceExhausted if fewer than `needed_bytes` are free on the file system of `path`.
Status CheckSpace(const std::string& path, uint64_t needed_bytes);

}  // namespace stasis::store
