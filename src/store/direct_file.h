// A file that is written past the page cache where that is to be had: what is written there is not
// read soon, and the copy to the cache would be made by one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

class DirectFile {
 public:
  // Smaller pieces are better off in the page cache.
  static constexpr size_t kLeastBytes = 256 << 10;

  // `path` names the file in errors.
  DirectFile(UniqueFd fd, std::string path);

  // All of it. May be called by several threads at once. What is large and aligned to 4096 bytes,
  // in memory and in the file, goes past the page cache.
  Status WriteAt(std::string_view data, uint64_t offset) const;
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  UniqueFd fd_;
  UniqueFd direct_fd_;  // the same file with O_DIRECT; none where that is not to be had
  std::string path_;
};

}  // namespace stasis::store
