#include "dataplane/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/page_size.h"
#include "base/parallel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace stasis::dataplane {
namespace {

// Size of a thread's work item. It is small enough that one part has work for all threads.
constexpr uint64_t kItemBytes = 16u << 20;

// Returns 0 or an errno. The file's pages are already allocated, so this only clears and maps them.
int Touch(char* at, uint64_t bytes) {
  for (;;) {
    if (::madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    break;
  }
  // Linux before 5.14 has no MADV_POPULATE_WRITE. Adding zero atomically writes to a page without
  // changing it, even if other threads write to it.
  for (uint64_t i = 0; i < bytes; i += PageBytes()) {
    __atomic_fetch_add(at + i, 0, __ATOMIC_RELAXED);
  }
  return 0;
}

// Maps the file from `offset` over the existing mapping.
Status MapOver(char* at, uint64_t bytes, int fd, uint64_t offset) {
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(offset)) == MAP_FAILED) {
    return FailErrno(errno, "map the arena");
  }
  // Optional: uses huge pages if the file has them, and keeps the arena out of core dumps.
  ::madvise(at, bytes, MADV_HUGEPAGE);
  ::madvise(at, bytes, MADV_DONTDUMP);
  return {};
}

}  // namespace

Result<Mapping> Mapping::Map(int fd, uint64_t bytes, uint64_t reserve) {
  const auto addresses = [](uint64_t size) {
    return ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  Mapping mapping;
  mapping.reserved_ = std::max(bytes, reserve);
  void* data = addresses(mapping.reserved_);
  if (data == MAP_FAILED && reserve > bytes) data = addresses(mapping.reserved_ = bytes);
  if (data == MAP_FAILED) return FailErrno(errno, "map the arena");
  mapping.data_ = static_cast<char*>(data);
  mapping.bytes_ = bytes;
  STASIS_TRY(MapOver(mapping.data_, bytes, fd, 0));
  return mapping;
}

Status Mapping::Grow(int fd, uint64_t bytes) {
  if (bytes > reserved_ || bytes_ % PageBytes() != 0) {
    return Fail(Code::kResourceExhausted, "too few addresses are reserved for this arena");
  }
  if (bytes <= bytes_) return {};
  STASIS_TRY(MapOver(data_ + bytes_, bytes - bytes_, fd, bytes_));
  bytes_ = bytes;
  return {};
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_, other.reserved_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, reserved_);
}

Prefaulter::Prefaulter(char* base, std::vector<Part> parts, unsigned threads) : base_(base) {
  left_.resize(parts.size());
  assert(std::all_of(parts.begin(), parts.end(), [](const Part& part) {
    return part.offset % PageBytes() == 0 && part.bytes % PageBytes() == 0;
  }));
  for (size_t i = 0; i < parts.size(); ++i) {
    for (uint64_t done = 0; done < parts[i].bytes; done += kItemBytes) {
      items_.push_back({i, parts[i].offset + done, std::min(kItemBytes, parts[i].bytes - done)});
      ++left_[i];
    }
  }
  threads_ = StartThreads(std::min<size_t>(threads, items_.size()), [this] { Work(); });
  if (threads_.empty()) Work();
}

Prefaulter::~Prefaulter() {
  next_ = items_.size();
  threads_.clear();
}

void Prefaulter::Work() {
  for (size_t i; (i = next_.fetch_add(1)) < items_.size();) {
    const Item& item = items_[i];
    const int error = Touch(base_ + item.offset, item.bytes);
    std::lock_guard lock(mutex_);
    if (error != 0) error_ = error;
    assert(left_[item.part] > 0);
    if (--left_[item.part] == 0 || error != 0) touched_.notify_all();
  }
}

Status Prefaulter::Wait(size_t index) {
  assert(index < left_.size());
  std::unique_lock lock(mutex_);
  touched_.wait(lock, [&] { return error_ != 0 || left_[index] == 0; });
  if (error_ == 0) return {};
  Error error = ErrnoError(error_, "touch the arena's memory");
  error.code = Code::kResourceExhausted;
  return Fail(std::move(error));
}

}  // namespace stasis::dataplane
