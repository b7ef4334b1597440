#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace stasis {

bool TryLock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

// flock(2) has no timeout, so the blocking call is made by a thread that may be left behind; it
// holds a reference of its own to the open file, and lets the lock go when it gets it too late.
bool LockUntil(int fd, const Deadline& deadline) {
  if (TryLock(fd)) return true;
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    bool locked = false;
    bool abandoned = false;
  };
  auto shared = std::make_shared<Shared>();
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return false;
  std::thread([shared, copy] {
    bool locked = TEMP_FAILURE_RETRY(::flock(copy, LOCK_EX)) == 0;
    std::lock_guard lock(shared->mutex);
    if (shared->abandoned && locked) ::flock(copy, LOCK_UN);
    shared->locked = locked && !shared->abandoned;
    shared->ended = true;
    ::close(copy);
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  auto ended = [&] { return shared->ended; };
  if (deadline.never()) {
    shared->changed.wait(lock, ended);
  } else {
    shared->changed.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeout()), ended);
  }
  if (!shared->locked) shared->abandoned = true;
  return shared->locked;
}

}  // namespace stasis
