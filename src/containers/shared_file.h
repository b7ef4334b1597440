// Writes files in folders that other programs use too, such as /etc/criu and /etc/cdi.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::containers {

// Returns the content of a file, or an empty string if it does not exist.
Result<std::string> ReadSharedFile(const std::string& path);

// Replaces the file atomically: a reader sees the old or the new content. Creates missing folders
// with mode 0755. A new file has mode 0644; an existing file keeps its mode and owner, and a
// symbolic link remains.
Status WriteSharedFile(const std::string& path, const std::string& content);

// Removes the file. Succeeds if the file does not exist.
Status RemoveSharedFile(const std::string& path);

}  // namespace stasis::containers
