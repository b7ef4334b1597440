#include "shim/log_bound.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace stasis::shim {
namespace {

constexpr std::chrono::milliseconds kShortest{200}, kLongest{5000};
constexpr uint64_t kBlock = 4096;
// Minimum number of bytes to free at a time.
uint64_t Step(uint64_t keep) { return std::max<uint64_t>(keep / 16, 64u << 10); }

}  // namespace

LogBound::LogBound(std::string path, const FileId& id, uint64_t keep)
    : path_(std::move(path)), id_(id), keep_(keep), rest_(kShortest), next_(Deadline::In({})) {
  Serve();
}

void LogBound::Serve() {
  if (!next_.passed()) return;
  const uint64_t before = size_;
  if (!Cut()) {
    next_ = Deadline();
    return;
  }
  rest_ = size_ == before ? std::min(2 * rest_, kLongest) : kShortest;
  next_ = Deadline::In(rest_);
}

bool LogBound::Cut() {
  auto file = stasis::Open(path_, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat st;
  // The file was renamed, removed or replaced.
  if (!file || ::fstat(file->get(), &st) != 0 || FileId::Of(st) != id_ || !S_ISREG(st.st_mode)) {
    return false;
  }
  size_ = static_cast<uint64_t>(st.st_size);
  if (size_ < given_) given_ = 0;  // truncated by the user
  if (size_ - given_ < keep_ + Step(keep_)) return true;
  uint64_t cut = (size_ - keep_) / kBlock * kBlock;
  if (::fallocate(file->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(given_), static_cast<off_t>(cut - given_)) != 0) {
    return false;  // the file system does not support holes
  }
  given_ = cut;
  return true;
}

}  // namespace stasis::shim
