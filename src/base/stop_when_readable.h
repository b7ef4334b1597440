// Turns a readable descriptor, such as the end of a pipe that a signal handler writes to, into a
// stop token.
#pragma once

#include <memory>
#include <stop_token>

#include "base/fd.h"
#include "base/result.h"
#include "base/thread.h"

namespace stasis {

class StopWhenReadable {
 public:
  // Starts a thread that waits for `fd`, which must stay open while this object exists.
  static Result<std::unique_ptr<StopWhenReadable>> Start(int fd);
  // Ends the thread.
  ~StopWhenReadable();
  StopWhenReadable(const StopWhenReadable&) = delete;

  std::stop_token token() const { return source_.get_token(); }

 private:
  StopWhenReadable() = default;
  void Wait(int fd);

  std::stop_source source_;
  UniqueFd end_;  // an eventfd
  Thread thread_;
};

}  // namespace stasis
