#include "base/stop_when_readable.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace stasis {

Result<std::unique_ptr<StopWhenReadable>> StopWhenReadable::StartFor(int fd, short events) {
  std::unique_ptr<StopWhenReadable> stop(new StopWhenReadable());
  stop->end_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!stop->end_) return FailErrno(errno, "eventfd");
  STASIS_ASSIGN(stop->thread_,
                Thread::Start([raw = stop.get(), fd, events] { raw->Wait(fd, events); }));
  return stop;
}

StopWhenReadable::~StopWhenReadable() {
  const uint64_t one = 1;
  if (end_) (void)!::write(end_.get(), &one, sizeof one);
  thread_.Join();
}

void StopWhenReadable::Wait(int fd, short events) {
  pollfd waits[] = {{fd, events, 0}, {end_.get(), POLLIN, 0}};
  while (::poll(waits, 2, -1) < 0 && errno == EINTR) {
  }
  if (waits[0].revents != 0) source_.request_stop();
}

}  // namespace stasis
