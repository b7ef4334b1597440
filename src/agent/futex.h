// Waiting on a word, and a mutex built on it. Unlike a pthread mutex, this one can be reset to
// unlocked in a forked child, and it needs no symbol of libpthread.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace stasis::agent {

inline int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Returns when the word is not `expected`, after a wake-up (which may be spurious), or after
// `timeout_ns` (< 0: no timeout). Preserves errno, which belongs to the program.
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns = -1) {
  int before = errno;
  timespec span{timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &span, nullptr,
          0);
  errno = before;
}

inline void FutexWake(std::atomic<uint32_t>* word, int count = INT32_MAX) {
  int before = errno;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
  errno = before;
}

class Mutex {
 public:
  void Lock() {
    uint32_t free = 0;
    if (word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
    while (word_.exchange(2, std::memory_order_acquire) != 0) FutexWait(&word_, 2);
  }
  bool TryLock() {
    uint32_t free = 0;
    return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  // Returns false if the mutex did not become free by `deadline_ns` (NowNs() time).
  bool LockUntil(int64_t deadline_ns) {
    if (TryLock()) return true;
    while (word_.exchange(2, std::memory_order_acquire) != 0) {
      const int64_t left = deadline_ns - NowNs();
      if (left <= 0) return false;
      FutexWait(&word_, 2, left);
    }
    return true;
  }
  void Unlock() {
    if (word_.exchange(0, std::memory_order_release) == 2) FutexWake(&word_, 1);
  }
  // SAFETY: only in a forked child, where the thread that holds it does not exist.
  void ResetAfterFork() { word_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> word_{0};
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~Lock() { mutex_.Unlock(); }
  Lock(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace stasis::agent
