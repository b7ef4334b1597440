// Opens files inside an image: follows no links, never leaves the folder, and accepts only regular
// files.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

// Opens the folder at a path that the user gave. Follows symbolic links.
Result<UniqueFd> OpenFolder(const std::string& path);

// Calls openat2(2) with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, O_CLOEXEC and O_NONBLOCK. Without
// O_NONBLOCK, a FIFO in the place of a file would block the caller. Errors have the domain kErrno.
Result<UniqueFd> OpenBeneath(int folder_fd, const std::string& path, int flags, mode_t mode = 0600);

struct OpenedFile {
  UniqueFd fd;
  uint64_t size_bytes = 0;
};
// Opens a regular file for reading. Returns kDataLoss if `path` is a link, a FIFO, a folder or
// another type of file; the message names the type.
Result<OpenedFile> OpenRegular(int folder_fd, const std::string& path);

// Returns the entries of a folder, sorted, without "." and "..".
struct Entry {
  std::string name;
  bool is_regular = false;
  bool is_folder = false;
};
Result<std::vector<Entry>> ListFolder(int folder_fd);

// Returns the type of a file from its st_mode: "symbolic link", "folder", "FIFO", ...
const char* FileTypeName(unsigned mode);

}  // namespace stasis::store
