#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/thread.h"

namespace stasis {

bool TryLock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

// flock(2) has no timeout, so a thread that may be abandoned makes the blocking call. The thread
// holds its own reference to the open file. If it gets the lock too late it must not unlock: the
// lock belongs to the open file description, which the caller may have locked meanwhile.
Status LockUntil(int fd, const Deadline& deadline) {
  if (TryLock(fd)) return {};
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    bool locked = false;
  };
  auto shared = std::make_shared<Shared>();
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return FailErrno(errno, "duplicate a lock's descriptor");
  auto thread = Thread::Start([shared, copy] {
    bool locked = TEMP_FAILURE_RETRY(::flock(copy, LOCK_EX)) == 0;
    std::lock_guard lock(shared->mutex);
    shared->locked = locked;
    shared->ended = true;
    ::close(copy);
    shared->changed.notify_all();
  });
  if (!thread) {
    ::close(copy);
    return Fail(std::move(thread).error().WithContext("wait for a lock"));
  }
  std::move(*thread).Detach();
  std::unique_lock lock(shared->mutex);
  auto ended = [&] { return shared->ended; };
  if (deadline.never()) {
    shared->changed.wait(lock, ended);
  } else {
    shared->changed.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeout()), ended);
  }
  if (shared->locked) return {};
  return Fail(Code::kDeadlineExceeded, "another process holds the lock");
}

}  // namespace stasis
