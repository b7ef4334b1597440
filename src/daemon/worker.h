// A process that does the work of one call (service/worker_main.cc), and the thread that listens to
// it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::daemon {

class Worker {
 public:
  using OnEvent = std::function<void(std::string event)>;
  // Called once and last. The error: the method's own, or, `lost`, that the worker ended without
  // one.
  using OnEnd = std::function<void(Result<std::string> reply, bool lost)>;

  // Of the workers, and so of the jobs that they start: that of whoever started the daemon. Set
  // before the first one is started; nothing: the daemon's own.
  static std::optional<uint64_t> descriptor_limit;

  // Both are called by a thread of the worker's own.
  static Result<std::shared_ptr<Worker>> Start(const v1::WorkerRequest& request, OnEvent on_event,
                                               OnEnd on_end);

  // Asks an operation to undo what it did; nothing else changes.
  void Cancel();
  // Ends what is only waited for, since nobody waits any more. Never called of an operation.
  void Abandon();

 private:
  Worker(Subprocess process, UniqueFd frames)
      : process_(std::move(process)), frames_(std::move(frames)) {}
  struct Answer {
    Result<std::string> reply;
    bool lost;
  };
  Answer Listen(const OnEvent& on_event);
  void Signal(int signal);

  std::mutex mutex_;  // of `ended_`: a process that was reaped gets no signal
  bool ended_ = false;
  Subprocess process_;
  UniqueFd frames_;
};

}  // namespace stasis::daemon
