// Makes a request to stop visible to poll(2), as a descriptor.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <stop_token>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

class StopEvent {
 public:
  static Result<std::unique_ptr<StopEvent>> Make(const std::stop_token& stop) {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
    if (!fd) return FailErrno(errno, "eventfd");
    return std::unique_ptr<StopEvent>(new StopEvent(std::move(fd), stop));
  }
  StopEvent(const StopEvent&) = delete;

  // Becomes readable when a stop is requested.
  int fd() const { return fd_.get(); }

 private:
  StopEvent(UniqueFd fd, const std::stop_token& stop)
      : fd_(std::move(fd)), callback_(stop, [this] { (void)::eventfd_write(fd_.get(), 1); }) {}

  const UniqueFd fd_;
  const std::stop_callback<std::function<void()>> callback_;
};

}  // namespace stasis
