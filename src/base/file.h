// Reads and writes whole files, with one set of rules about durability.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

// Identifies a file independent of its names.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  static FileId Of(const struct stat& st) { return {st.st_dev, st.st_ino}; }
  auto operator<=>(const FileId&) const = default;
};

// open(2) with O_CLOEXEC added. `dir_fd` may be AT_FDCWD.
Result<UniqueFd> OpenAt(int dir_fd, const std::string& path, int flags, mode_t mode = 0600);
inline Result<UniqueFd> Open(const std::string& path, int flags, mode_t mode = 0600) {
  return OpenAt(-100 /* AT_FDCWD */, path, flags, mode);
}

// Reads the whole file. Returns kResourceExhausted if it is longer than `max_bytes`. Works on
// /proc.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes = 64u << 20);
Result<std::string> ReadFileAt(int dir_fd, const std::string& path, size_t max_bytes = 64u << 20);
// Writes all of `data`, continuing after short writes and EINTR.
Status WriteAll(int fd, std::string_view data);
// Reads exactly `size` bytes at `offset`. Returns kDataLoss if the file is shorter.
Status PreadAll(int fd, void* out, size_t size, uint64_t offset);

// Writes a file of mode 0600 under a temporary name in the same directory, syncs it, renames it
// into place and syncs the directory. After a crash or power failure the file has either the old or
// the new content.
Status WriteFileDurably(const std::string& path, std::string_view data);
// Like WriteFileDurably, but syncs nothing: after a power failure the file may be torn or missing.
Status ReplaceFile(const std::string& path, std::string_view data);
// Like WriteFileDurably, but keeps an existing file and returns success.
Status WriteNewFileDurably(const std::string& path, std::string_view data);

Status FsyncPath(const std::string& path);  // accepts a file or a directory
// Creates a directory and its missing parents with `mode` less the umask. Succeeds if the path
// exists.
Status MakeDirs(const std::string& path, mode_t mode = 0700);
// Removes a file. Succeeds if there is none.
Status RemoveFile(const std::string& path);
// Removes a tree without following links. Succeeds if there is none. Calls `removed` after each
// removed entry.
Status RemoveTree(const std::string& path, const std::function<void()>& removed = nullptr);
bool PathExists(const std::string& path);
// Returns the names in a directory, sorted, without "." and "..".
Result<std::vector<std::string>> ListDir(const std::string& path);
// Returns the target of a symbolic link.
Result<std::string> ReadLink(const std::string& path);
// Returns the bytes that an unprivileged writer may still store on the file system of `path`.
Result<uint64_t> FreeBytes(const std::string& path);
// Returns the longest existing prefix of `path`, at least "/".
std::string ExistingPart(std::string path);
std::string AbsolutePath(const std::string& path);

}  // namespace stasis
