// Reads parts of a checkpoint that is one object: an archive of podman, or an image in containerd's
// store.
#pragma once

#include <string>
#include <vector>

#include "containers/checkpoint.h"

namespace stasis::containers {

// Returns the paths of this machine that the container needs for its bind mounts. The runtime fails
// if one of them is missing. Reads only the beginning of an archive.
Result<std::vector<std::string>> MountSources(CommandRunner& runner, const RestoreRequest& request,
                                              const Deadline& deadline);

// Extracts `files`, given by their paths below the folder of GPU data, to the existing folder
// `folder`/kCriuFolder/stasis. Omits files that the checkpoint does not have. The extracted files
// are not trustworthy: they can be links, for example.
Status ExtractData(CommandRunner& runner, const RestoreRequest& request,
                   const std::vector<std::string>& files, const std::string& folder,
                   const Deadline& deadline);

// Returns the digest of the blob whose media type contains `kind` in containerd's image, or an
// empty string if the image has no such blob. Returns kNotFound if the image does not exist.
Result<std::string> BlobOfImage(CommandRunner& runner, const Reference& image, const Places& places,
                                const std::string& kind, const Deadline& deadline);

// Media types of a checkpoint's blobs.
inline constexpr char kCriuFilesBlob[] = "checkpoint.criu.tar";
inline constexpr char kSpecificationBlob[] = "checkpoint.config";

// Returns the sources of the bind mounts in an OCI specification. Ignores other bytes before and
// after the JSON document. Returns kDataLoss if the document is not valid.
Result<std::vector<std::string>> MountSourcesIn(const std::string& specification);

}  // namespace stasis::containers
