#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "driver.h"

namespace softgpu {
namespace {

// Writes a pattern that is neither zero nor repeated to the first 4 KiB of every 64 KiB, so that no
// block is zero. The rest is not touched: filling it would take longer than most tests.
void FillWithGarbage(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kStep = 64 * 1024, kFilled = 4096;
  static std::atomic<uint64_t> seed{0x9E3779B97F4A7C15};
  uint64_t x = seed.fetch_add(0x9E3779B97F4A7C15) | 1;
  for (uint64_t at = 0; at < bytes; at += kStep) {
    auto* words = reinterpret_cast<uint64_t*>(address + at);
    for (uint64_t i = 0; i < std::min(kFilled, bytes - at) / sizeof(uint64_t); ++i) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      words[i] = x;
    }
  }
}

}  // namespace

CUresult MakeDeviceFile(int ordinal, uint64_t bytes, Fd* file) {
  int folder = driver().broker.device_folder(driver().devices[ordinal].physical);
  file->Reset(openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file->valid()) {
    return errno == ENOSPC || errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
                                              : CUDA_ERROR_OPERATING_SYSTEM;
  }
  int rc;
  do {
    rc = fallocate(file->get(), 0, 0, off_t(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return CUDA_SUCCESS;
  int error = errno;
  file->Reset();
  return error == EFBIG || error == ENOSPC || error == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
                                                              : CUDA_ERROR_OPERATING_SYSTEM;
}

bool MapDeviceFile(const Fd& file, uint64_t at, uint64_t bytes, bool replace) {
  void* where = reinterpret_cast<void*>(at);
  int fixed = replace ? MAP_FIXED : MAP_FIXED_NOREPLACE;
  void* got = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file.get(), 0);
  if (got == MAP_FAILED) return false;
  if (got != where) {
    munmap(got, bytes);
    return false;
  }
  madvise(got, bytes, MADV_DONTFORK);  // a child must neither use nor hold it
  return true;
}

int DeviceOfFile(int fd) {
  char link[64];
  char path[128] = {};
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof(path) - 1) <= 0) return -1;
  int index = -1;
  const bool found =
      sscanf(path, "/softgpu/%d/#", &index) == 1 || sscanf(path, "/softgpu-hip/%d/#", &index) == 1;
  return found ? index : -1;
}

CUresult MemoryTable::Create(MemoryKind kind, int ordinal, uint64_t bytes, bool keep, Memory** out,
                             uint64_t at) {
  auto memory = std::make_unique<Memory>();
  memory->kind = kind;
  memory->ordinal = ordinal;
  memory->bytes = RoundUp(bytes, kind == MemoryKind::kModule ? KernelPage() : kPage);
  memory->keep = keep;
  if (memory->bytes < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Fd file;
  if (CUresult r = MakeDeviceFile(ordinal, memory->bytes, &file); r != CUDA_SUCCESS) return r;
  if (kind == MemoryKind::kModule) {
    memory->home = at;
    if (pwrite(file.get(), reinterpret_cast<void*>(at), memory->bytes, 0) !=
        ssize_t(memory->bytes)) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
  } else {
    uint64_t alignment = memory->bytes >= kGranularity ? kGranularity : 64 * 1024;
    memory->home = addresses_.Reserve(memory->bytes, alignment);
    memory->reserved = memory->bytes;
    if (memory->home == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = CUDA_SUCCESS;
  if (!MapDeviceFile(file, memory->home, memory->bytes, kind == MemoryKind::kModule)) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  } else if (keep) {
    result = driver().broker.Keep(file.get(), &memory->ticket);
  }
  if (result != CUDA_SUCCESS) {
    if (memory->reserved != 0) {
      munmap(reinterpret_cast<void*>(memory->home), memory->bytes);
      addresses_.Release(memory->home, memory->reserved);
    }
    return result;
  }
  if (kind == MemoryKind::kPlain || kind == MemoryKind::kHandle) {
    FillWithGarbage(memory->home, memory->bytes);
  }
  *out = memory.get();
  memories_.emplace(*out, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult MemoryTable::Adopt(MemoryKind kind, int ordinal, const Fd& file, uint64_t bytes,
                            Memory** out) {
  auto memory = std::make_unique<Memory>();
  memory->kind = kind;
  memory->ordinal = ordinal;
  memory->bytes = bytes;
  memory->home = addresses_.Reserve(bytes, kGranularity);
  memory->reserved = bytes;
  if (memory->home == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!MapDeviceFile(file, memory->home, bytes, false)) {
    addresses_.Release(memory->home, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = memory.get();
  memories_.emplace(*out, std::move(memory));
  return CUDA_SUCCESS;
}

void MemoryTable::Destroy(Memory* memory) {
  // Pages of an image are unmapped with the image.
  if (memory->kind != MemoryKind::kModule) {
    munmap(reinterpret_cast<void*>(memory->home), memory->bytes);
    addresses_.Release(memory->home, memory->reserved);
  }
  if (memory->keep) driver().broker.Drop(memory->ticket);
  memories_.erase(memory);
}

CUresult MemoryTable::MapAlias(Memory* memory, uint64_t address) {
  // With an old size of 0, mremap maps the same pages once more without a descriptor of the file.
  void* got = mremap(reinterpret_cast<void*>(memory->home), 0, memory->bytes,
                     MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(address));
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  mprotect(got, memory->bytes, PROT_NONE);
  return CUDA_SUCCESS;
}

void MemoryTable::UnmapAlias(const Range& range) {
  munmap(reinterpret_cast<void*>(range.address), range.bytes);
}

Range* MemoryTable::AddRange(Range range) {
  range.buffer_id = next_buffer_id_++;
  return &(ranges_[range.address] = range);
}

Range* MemoryTable::Find(uint64_t address) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &it->second : nullptr;
}

Range* MemoryTable::At(uint64_t address) {
  auto it = ranges_.find(address);
  return it == ranges_.end() ? nullptr : &it->second;
}

Memory* MemoryTable::FindMemory(uint64_t handle) const {
  auto it = memories_.find(reinterpret_cast<Memory*>(handle));
  return it == memories_.end() ? nullptr : it->second.get();
}

}  // namespace softgpu
