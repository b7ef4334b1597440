// A file whose writes bypass the page cache if the file system supports it. The page cache would
// not help, because the data is not read again soon. It would also slow down writes, because only
// one thread at a time can copy into the cache of a file.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

class DirectFile {
 public:
  // Smaller writes are faster through the page cache.
  static constexpr size_t kLeastBytes = 256 << 10;

  // `path` names the file in errors.
  DirectFile(UniqueFd fd, std::string path);

  // Writes all of `data`. Data that is large and aligned to 4096 bytes, in memory and in the file,
  // bypasses the page cache. Safe to call from any thread.
  Status WriteAt(std::string_view data, uint64_t offset) const;
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  UniqueFd fd_;
  UniqueFd direct_fd_;  // the same file with O_DIRECT; not valid if that is not supported
  std::string path_;
};

}  // namespace stasis::store
