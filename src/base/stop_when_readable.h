// Requests a stop when a descriptor becomes readable, such as a pipe that a signal handler writes
// to, or when its other end is closed.
#pragma once

#include <poll.h>

#include <memory>
#include <stop_token>

#include "base/fd.h"
#include "base/result.h"
#include "base/thread.h"

namespace stasis {

class StopWhenReadable {
 public:
  // Starts a thread that waits for `fd`, which must stay open while this object exists.
  static Result<std::unique_ptr<StopWhenReadable>> Start(int fd) { return StartFor(fd, POLLIN); }
  // Waits until the other end of `fd`, a pipe or socket, is closed, whatever has arrived before.
  static Result<std::unique_ptr<StopWhenReadable>> StartForClose(int fd) {
    return StartFor(fd, POLLRDHUP);
  }
  // Ends the thread.
  ~StopWhenReadable();
  StopWhenReadable(const StopWhenReadable&) = delete;

  std::stop_token token() const { return source_.get_token(); }

 private:
  StopWhenReadable() = default;
  static Result<std::unique_ptr<StopWhenReadable>> StartFor(int fd, short events);
  void Wait(int fd, short events);

  std::stop_source source_;
  UniqueFd end_;  // an eventfd
  Thread thread_;
};

}  // namespace stasis
