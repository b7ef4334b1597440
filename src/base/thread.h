// Starts threads and returns an Error, not an exception, if a limit on processes is reached.
// Product code starts threads only here and in base/parallel.h (enforced by
// tests/source/threads_test.py).
#pragma once

#include <cassert>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"
#include "base/task_limits.h"

namespace stasis {

// Marks code that handles a failed thread start, for as long as an object exists on the calling
// thread. For other code in programs with gRPC, cmake/grpc_threads.cc retries the start and then
// ends the program with a message.
class StartMayFail {
 public:
  StartMayFail() { ++depth_; }
  ~StartMayFail() { --depth_; }
  StartMayFail(const StartMayFail&) = delete;
  // Returns true if a StartMayFail exists on the calling thread.
  static bool Now() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// A thread that is joined by the destructor. Movable. Not thread-safe.
class Thread {
 public:
  // Runs `work` on a new thread. Returns kResourceExhausted, without running anything, if no more
  // threads can be started.
  template <class Work>
  static Result<Thread> Start(Work work) {
    const StartMayFail may_fail;
    try {
      return Thread(std::thread(std::move(work)));
    } catch (const std::system_error& error) {
      return Fail(TaskError(error.code().value(), "start a thread"));
    }
  }

  Thread() = default;
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept {
    Join();
    thread_ = std::move(other.thread_);
    return *this;
  }
  ~Thread() { Join(); }

  std::thread::id id() const { return thread_.get_id(); }
  // Waits for the thread to finish. Does nothing if it was already joined or detached.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  // Lets the thread continue until it finishes or the process exits.
  void Detach() && {
    assert(thread_.joinable());
    thread_.detach();
  }

 private:
  explicit Thread(std::thread thread) : thread_(std::move(thread)) {}

  std::thread thread_;
};

}  // namespace stasis
