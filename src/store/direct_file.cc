#include "store/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "store/image_folder.h"
#include "store/limits.h"

namespace stasis::store {

namespace {

bool IsAligned(std::string_view data, uint64_t offset) {
  return (reinterpret_cast<uintptr_t>(data.data()) | data.size() | offset) % kPackAlign == 0;
}

}  // namespace

DirectFile::DirectFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {
  const std::string again = "/proc/self/fd/" + std::to_string(fd_.get());
  direct_fd_.Reset(::open(again.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
}

Status DirectFile::WriteAt(std::string_view data, uint64_t offset) const {
  bool direct = direct_fd_.valid() && data.size() >= kLeastBytes;
  while (!data.empty()) {
    direct = direct && IsAligned(data, offset);  // after a short write the rest is not aligned
    const int fd = direct ? direct_fd_.get() : fd_.get();
    const ssize_t written =
        TEMP_FAILURE_RETRY(::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset)));
    if (written < 0 && errno == EINVAL && direct) {
      direct = false;  // some file systems accept O_DIRECT in open and refuse it here
      continue;
    }
    if (written < 0) {
      return Fail(
          WithSpaceHint(ErrnoError(errno, "write"), path_).WithContext("write pack " + path_));
    }
    data.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

}  // namespace stasis::store
