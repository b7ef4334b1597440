#include "dataplane/attached_arena.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace stasis::dataplane {

using namespace stasis::cuda;  // NOLINT: the driver's own names

uint64_t ChunkBytes() {
  const char* text = std::getenv("STASIS_MOVER_CHUNK_MIB");
  const uint64_t mib = text == nullptr ? 256 : std::strtoull(text, nullptr, 10);
  return std::clamp<uint64_t>(mib, 2, 4096) << 20;
}

Status AttachedArena::Attach(UniqueFd fd, uint64_t bytes) {
  struct stat st, now;
  struct statfs file_system;
  if (::fstat(fd.get(), &st) != 0 || ::fstatfs(fd.get(), &file_system) != 0) {
    return FailErrno(errno, "stat the arena");
  }
  if (!S_ISREG(st.st_mode) || bytes == 0 || static_cast<uint64_t>(st.st_size) < bytes) {
    return Fail(Code::kInvalidArgument, "the arena is not a file of the size that was said");
  }
  // The inode cannot be another's meanwhile: we hold it.
  if (attached() && ::fstat(fd_.get(), &now) == 0 && now.st_dev == st.st_dev &&
      now.st_ino == st.st_ino && bytes == mapping_.bytes()) {
    fd_ = std::move(fd);  // another open file may hold the lock now
    return {};
  }
  Detach();
  STASIS_ASSIGN(mapping_, Mapping::Map(fd.get(), bytes));
  fd_ = std::move(fd);
  staged_ = file_system.f_type != TMPFS_MAGIC;
  registered_.assign((bytes + chunk_bytes_ - 1) / chunk_bytes_, false);
  return {};
}

void AttachedArena::Detach() {
  for (size_t chunk = 0; chunk < registered_.size(); ++chunk) {
    if (registered_[chunk]) gpu_.fn().cuMemHostUnregister(mapping_.data() + chunk * chunk_bytes_);
  }
  registered_.clear();
  mapping_ = Mapping();
  fd_.Reset();
}

uint64_t AttachedArena::SizeOf(uint64_t chunk) const {
  return std::min(chunk_bytes_, mapping_.bytes() - chunk * chunk_bytes_);
}

AttachedArena::Preparation::Preparation(AttachedArena& arena, const std::vector<uint64_t>& chunks)
    : arena_(arena), chunks_(chunks) {
  std::vector<Prefaulter::Part> cold;
  for (uint64_t chunk : chunks_) {
    const bool ready = arena_.staged_ || arena_.registered_[chunk];
    cold_index_.push_back(ready ? -1 : static_cast<int64_t>(cold.size()));
    if (!ready) cold.push_back({chunk * arena_.chunk_bytes_, arena_.SizeOf(chunk)});
  }
  if (!cold.empty()) prefaulter_.emplace(arena_.data(), std::move(cold), DefaultThreads());
}

Status AttachedArena::Preparation::Ready(size_t index) {
  if (cold_index_[index] < 0 || arena_.staged_) return {};
  STASIS_TRY(prefaulter_->Wait(static_cast<size_t>(cold_index_[index])));
  const uint64_t chunk = chunks_[index];
  const uint64_t bytes = arena_.SizeOf(chunk);
  CUresult result = arena_.gpu_.fn().cuMemHostRegister_v2(
      arena_.data() + chunk * arena_.chunk_bytes_, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) {
    arena_.registered_[chunk] = true;
    cold_bytes_ += bytes;
    return {};
  }
  // A limit on locked memory, for one. Slower, but right.
  if (!IsHarmless(result) && result != CUDA_ERROR_OPERATING_SYSTEM) {
    return Fail(arena_.gpu_.MakeError(result, "cuMemHostRegister"));
  }
  arena_.staged_ = true;
  return {};
}

}  // namespace stasis::dataplane
