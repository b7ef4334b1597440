#include "dataplane/attached_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/file.h"
#include "base/parallel.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

using namespace stasis::cuda;  // NOLINT: the driver's own names

namespace {

// Address space that is reserved for growth, in addition to twice the size of an arena. It needs no
// memory.
constexpr uint64_t kMostGrowth = 64ull << 30;

}  // namespace

AttachedArena::~AttachedArena() {
  for (File& file : files_) Unmap(file);
}

Status AttachedArena::Attach(UniqueFd fd, uint64_t bytes) {
  struct stat st;
  struct statfs file_system;
  if (::fstat(fd.get(), &st) != 0 || ::fstatfs(fd.get(), &file_system) != 0) {
    return FailErrno(errno, "stat the arena");
  }
  if (!S_ISREG(st.st_mode) || bytes == 0 || static_cast<uint64_t>(st.st_size) < bytes) {
    return Fail(Code::kInvalidArgument, "the arena is not a file of the announced size");
  }
  Detach();
  ForgetRemoved();
  // Device and inode number identify a known file: they cannot be reused while the file is mapped.
  auto same = [&](const File& file) { return file.device == st.st_dev && file.inode == st.st_ino; };
  auto known = std::find_if(files_.begin(), files_.end(), same);
  if (known != files_.end() && !Grow(*known, bytes)) {
    Unmap(*known);
    files_.erase(known);
    known = files_.end();
  }
  if (known == files_.end()) {
    File file;
    const std::string path = fmt::format("/proc/self/fd/{}", fd.get());
    STASIS_ASSIGN(file.fd, Open(path, O_RDWR));
    STASIS_ASSIGN(file.mapping, Mapping::Map(file.fd.get(), bytes, 2 * bytes + kMostGrowth));
    file.device = st.st_dev;
    file.inode = st.st_ino;
    file.staged = file_system.f_type != TMPFS_MAGIC;
    file.registered.assign((bytes + chunk_bytes_ - 1) / chunk_bytes_, false);
    // Without a watch, the removal is noticed when the next arena is attached. Watches the link
    // count (IN_ATTRIB): IN_DELETE_SELF arrives only after the last mapping is gone.
    if (removals_ >= 0) file.watch = ::inotify_add_watch(removals_, path.c_str(), IN_ATTRIB);
    files_.push_front(std::move(file));
    known = files_.begin();
  }
  file_ = &*known;
  fd_ = std::move(fd);
  return {};
}

// Growing avoids a new registration, which takes 2.4 s for 56 GiB. Most programs grow only a
// little.
bool AttachedArena::Grow(File& file, uint64_t bytes) {
  const uint64_t before = file.mapping.bytes();
  if (bytes < before || !file.mapping.Grow(file.fd.get(), bytes)) return false;
  if (bytes == before) return true;
  // The last chunk is now longer than its registered part.
  const uint64_t last = file.registered.size() - 1;
  if (before % chunk_bytes_ != 0 && file.registered[last]) {
    gpu_.fn().cuMemHostUnregister(file.mapping.data() + last * chunk_bytes_);
    file.registered[last] = false;
  }
  file.registered.resize((bytes + chunk_bytes_ - 1) / chunk_bytes_, false);
  return true;
}

void AttachedArena::Detach() {
  // Only registered memory is worth keeping, and the memory of staged files is not registered.
  if (file_ != nullptr && file_->staged) {
    files_.remove_if([this](File& file) {
      if (&file != file_) return false;
      Unmap(file);
      return true;
    });
  }
  file_ = nullptr;
  fd_.Reset();
}

void AttachedArena::ForgetRemoved() {
  files_.remove_if([this](File& file) {
    struct stat st;
    if (&file == file_) return false;
    if (::fstat(file.fd.get(), &st) == 0 && st.st_nlink > 0) return false;
    Unmap(file);
    return true;
  });
}

void AttachedArena::Unmap(File& file) {
  for (size_t chunk = 0; chunk < file.registered.size(); ++chunk) {
    if (!file.registered[chunk]) continue;
    gpu_.fn().cuMemHostUnregister(file.mapping.data() + chunk * chunk_bytes_);
  }
  if (file.watch >= 0) ::inotify_rm_watch(removals_, file.watch);
}

uint64_t AttachedArena::SizeOf(uint64_t chunk) const {
  assert(chunk * chunk_bytes_ < bytes());
  return std::min(chunk_bytes_, bytes() - chunk * chunk_bytes_);
}

AttachedArena::Preparation::Preparation(AttachedArena& arena, const std::vector<uint64_t>& chunks)
    : arena_(arena), chunks_(chunks) {
  std::vector<Prefaulter::Part> cold;
  for (uint64_t chunk : chunks_) {
    const bool ready = arena_.IsReady(chunk);
    cold_index_.push_back(ready ? -1 : static_cast<int64_t>(cold.size()));
    if (!ready) cold.push_back({chunk * arena_.chunk_bytes_, arena_.SizeOf(chunk)});
  }
  if (cold.empty()) return;
  // Registering and copying need processors too; touching pages with all processors is slower
  // overall.
  prefaulter_.emplace(arena_.data(), std::move(cold), std::max(ProcessorCount() / 2, 1u));
}

Status AttachedArena::Preparation::Ready(size_t index) {
  assert(index < chunks_.size() && chunks_[index] < arena_.file_->registered.size());
  if (cold_index_[index] < 0 || arena_.file_->staged) return {};
  STASIS_TRY(prefaulter_->Wait(static_cast<size_t>(cold_index_[index])));
  const uint64_t chunk = chunks_[index];
  const uint64_t bytes = arena_.SizeOf(chunk);
  CUresult result = arena_.gpu_.fn().cuMemHostRegister_v2(
      arena_.data() + chunk * arena_.chunk_bytes_, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) {
    arena_.file_->registered[chunk] = true;
    cold_bytes_ += bytes;
    return {};
  }
  // Registering may have failed because of the limit on locked memory. Copying through staging
  // buffers is slower, but works.
  if (!IsHarmless(result) && result != CUDA_ERROR_OPERATING_SYSTEM) {
    return Fail(arena_.gpu_.MakeError(result, "cuMemHostRegister"));
  }
  arena_.file_->staged = true;
  return {};
}

}  // namespace stasis::dataplane
