// Opening files inside an image: never through a link, never outside the folder, only regular
// files.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

// A folder given by its path as the user typed it; links on the way are followed.
Result<UniqueFd> OpenFolder(const std::string& path);

// openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS; O_CLOEXEC, and O_NONBLOCK so that a FIFO
// put in a file's place cannot hang us. The error is errno's, of the domain kErrno.
Result<UniqueFd> OpenBeneath(int folder_fd, const std::string& path, int flags, mode_t mode = 0600);

// A regular file to read, and its size; anything else in its place (a link, a FIFO, a folder) is
// kDataLoss, with the message saying what it is.
struct OpenedFile {
  UniqueFd fd;
  uint64_t size_bytes = 0;
};
Result<OpenedFile> OpenRegular(int folder_fd, const std::string& path);

// Returns the entries of a folder, sorted, without "." and "..".
struct Entry {
  std::string name;
  bool is_regular = false;
  bool is_folder = false;
};
Result<std::vector<Entry>> ListFolder(int folder_fd);

// "symbolic link", "folder", "FIFO", ... of an st_mode.
const char* FileTypeName(unsigned mode);

}  // namespace stasis::store
