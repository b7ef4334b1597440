// The process that executes one call (worker_main.cc), and the thread that reads its answer.
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

namespace stasis::api {

class Worker {
 public:
  using OnEvent = std::function<void(std::string event)>;
  // Called once, after the last event. If `lost` is true, the worker ended without an answer, and
  // the error describes the worker's end. Otherwise an error in `reply` comes from the method.
  using OnEnd = std::function<void(Result<std::string> reply, bool lost)>;

  // Sets the descriptor limit of the workers, and so of jobs that they start: the limit that the
  // daemon itself was started with. Must be called before the first worker starts; without this
  // call they inherit the daemon's raised limit.
  static void SetDescriptorLimit(std::optional<uint64_t> limit) { descriptor_limit_ = limit; }

  // A background thread calls both callbacks. The worker gets `connection`, if there is one, as
  // kConnectionFd.
  static Result<std::shared_ptr<Worker>> Start(const v1::WorkerRequest& request, OnEvent on_event,
                                               OnEnd on_end, int connection = -1);

  // Asks an operation to roll back.
  void Cancel();
  // Kills the worker because its caller has disconnected. Must not be called for an operation.
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

  static std::optional<uint64_t> descriptor_limit_;
  std::mutex mutex_;  // guards `ended_`, because a reaped process must get no signal
  bool ended_ = false;
  Subprocess process_;
  UniqueFd frames_;
};

}  // namespace stasis::api
