// Common definitions of softgpu's driver: the driver's types, owned file descriptors, and futexes.
// Unlike condition variables, futexes may be used by the restore thread (see checkpoint.h).
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "abi/cuda/driver_abi.h"

namespace softgpu {

using namespace stasis::cuda;  // NOLINT: this library is that API

inline constexpr int kDriverVersion = 13000;  // if SOFTGPU_CUDA_VERSION is not set
// A multiple of the kernel's page size. Kernels for arm64 have pages of 4, 16 or 64 KiB, and the
// layout of memory is the same on all of them.
#if defined(__aarch64__)
inline constexpr size_t kPage = 64 << 10;
#else
inline constexpr size_t kPage = 4096;
#endif
inline constexpr size_t kGranularity = 2 << 20;

// Returns the kernel's page size, for memory that something else has mapped. kPage is a multiple.
inline size_t KernelPage() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

inline constexpr size_t RoundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }
  // Moves the descriptor to a high number, for programs that depend on low ones.
  void MoveHigh() {
    int high = fcntl(fd_, F_DUPFD_CLOEXEC, 200);
    if (high >= 0) Reset(high);
  }

 private:
  int fd_ = -1;
};

inline uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

// Returns when `word` differs from `seen`, after `timeout_ms`, or spuriously.
inline void FutexWait(const std::atomic<uint32_t>* word, uint32_t seen, uint64_t timeout_ms) {
  timespec timeout{time_t(timeout_ms / 1000), long(timeout_ms % 1000) * 1'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

inline void FutexWake(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace softgpu
