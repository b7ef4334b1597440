#include "store/beneath.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"

namespace stasis::store {

Result<UniqueFd> OpenFolder(const std::string& path) { return Open(path, O_RDONLY | O_DIRECTORY); }

Result<UniqueFd> OpenBeneath(int folder_fd, const std::string& path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC | O_NONBLOCK);
  if ((flags & O_CREAT) != 0) how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  long fd = -1;
  do {
    fd = ::syscall(SYS_openat2, folder_fd, path.c_str(), &how, sizeof how);
    // EAGAIN: a rename elsewhere raced with the walk; the kernel asks to try again.
  } while (fd < 0 && (errno == EINTR || errno == EAGAIN));
  if (fd < 0) return FailErrno(errno, "open " + path);
  return UniqueFd(static_cast<int>(fd));
}

Result<OpenedFile> OpenRegular(int folder_fd, const std::string& path) {
  auto wrong_type = [&](unsigned mode) {
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                path + " is a " + FileTypeName(mode) + ", not a regular file");
  };
  struct stat st;
  auto fd = OpenBeneath(folder_fd, path, O_RDONLY);
  if (!fd) {
    // The file may be a link (ELOOP) or a socket (ENXIO). Name its type if stat(2) works.
    if (::fstatat(folder_fd, path.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode)) {
      return wrong_type(st.st_mode);
    }
    return Fail(std::move(fd).error());
  }
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode)) return wrong_type(st.st_mode);
  return OpenedFile{std::move(*fd), static_cast<uint64_t>(st.st_size)};
}

Result<std::vector<Entry>> ListFolder(int folder_fd) {
  // Open the folder again: readdir moves the file offset, which duplicated descriptors share.
  UniqueFd own(::openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) return FailErrno(errno, "open folder");
  DIR* dir = ::fdopendir(own.get());
  if (dir == nullptr) return FailErrno(errno, "list folder");
  own.release();

  std::vector<Entry> entries;
  int failed = 0;
  for (;;) {
    errno = 0;
    const dirent* item = ::readdir(dir);
    if (item == nullptr) {
      failed = errno;
      break;
    }
    Entry entry{item->d_name};
    if (entry.name == "." || entry.name == "..") continue;
    struct stat st;
    // d_type is not used, because some file systems do not set it.
    if (::fstatat(folder_fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
      entry.is_regular = S_ISREG(st.st_mode);
      entry.is_folder = S_ISDIR(st.st_mode);
    }
    entries.push_back(std::move(entry));
  }
  ::closedir(dir);
  if (failed != 0) return FailErrno(failed, "list folder");
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

const char* FileTypeName(unsigned mode) {
  struct Row {
    unsigned type;
    const char* name;
  };
  static constexpr Row kTypes[] = {
      {S_IFLNK, "symbolic link"}, {S_IFDIR, "folder"}, {S_IFIFO, "FIFO"},
      {S_IFSOCK, "socket"},       {S_IFCHR, "device"}, {S_IFBLK, "block device"},
      {S_IFREG, "regular file"},
  };
  for (const Row& row : kTypes) {
    if ((mode & S_IFMT) == row.type) return row.name;
  }
  return "file of unknown type";
}

}  // namespace stasis::store
