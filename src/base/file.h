// Files read and written whole, and the few rules about durability that everybody here follows.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

// Which file it is, whatever its names are.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  static FileId Of(const struct stat& st) { return {st.st_dev, st.st_ino}; }
  bool operator==(const FileId&) const = default;
};

// open(2) with O_CLOEXEC added. `dir_fd` may be AT_FDCWD.
Result<UniqueFd> OpenAt(int dir_fd, const std::string& path, int flags, mode_t mode = 0600);
inline Result<UniqueFd> Open(const std::string& path, int flags, mode_t mode = 0600) {
  return OpenAt(-100 /* AT_FDCWD */, path, flags, mode);
}

// The whole file, refused with kResourceExhausted when it is longer than `max_bytes`. Works on
// /proc.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes = 64u << 20);
Result<std::string> ReadFileAt(int dir_fd, const std::string& path, size_t max_bytes = 64u << 20);
// All of `data`, through short writes and EINTR.
Status WriteAll(int fd, std::string_view data);
// Exactly `size` bytes at `offset`; a shorter file is kDataLoss.
Status PreadAll(int fd, void* out, size_t size, uint64_t offset);

// Writes a file of mode 0600 under a temporary name beside it, syncs it, renames it into place and
// syncs the directory: afterwards either the old or the new content is there, also after a power
// failure.
Status WriteFileDurably(const std::string& path, std::string_view data);
// The same without any sync: after a power failure it may be torn, or not there.
Status ReplaceFile(const std::string& path, std::string_view data);
// Durably, but one that is there already stays, and that is success.
Status WriteNewFileDurably(const std::string& path, std::string_view data);

Status FsyncPath(const std::string& path);  // a file or a directory
Status MakeDirs(const std::string& path, mode_t mode = 0700);
// Removes a tree without following links; absent is success.
Status RemoveTree(const std::string& path);
bool PathExists(const std::string& path);
// Names in a directory, sorted, without "." and "..".
Result<std::vector<std::string>> ListDir(const std::string& path);
// Target of a symbolic link.
Result<std::string> ReadLink(const std::string& path);
// Bytes that an unprivileged writer may still store on the file system of `path`.
Result<uint64_t> FreeBytes(const std::string& path);
// The longest part of a path that is there, for one that will be made: "/" at the least.
std::string ExistingPart(std::string path);
std::string AbsolutePath(const std::string& path);

}  // namespace stasis
