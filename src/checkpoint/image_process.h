// The child process that writes an image. A write may hang in the kernel, where it cannot even be
// killed (a frozen file system, a dead disk). The process that runs the plan can then abandon the
// child at a deadline, roll back the operation, and exit.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "base/result.h"

namespace stasis::checkpoint {

class ImageProcess {
 public:
  using Progress = stasis::Progress;
  // Runs in the child. It sees the caller's memory at the time of Start, and the changes of earlier
  // tasks. `progress` also returns false when the deadline has passed.
  using Task = std::function<Result<std::string>(const std::string& request, const Progress&)>;

  // Forks the child, which has one thread for each task. Closes all descriptors in the child except
  // `keep_fds`. The child is killed when the calling thread ends. `place` names the store in
  // messages.
  static Result<std::unique_ptr<ImageProcess>> Start(std::map<std::string, Task> tasks,
                                                     const std::vector<int>& keep_fds,
                                                     std::string place);
  ~ImageProcess();
  ImageProcess(const ImageProcess&) = delete;
  ImageProcess& operator=(const ImageProcess&) = delete;

  // Runs a task and returns its answer. Different tasks may run at the same time, and a task may be
  // run again after it has answered. Kills the child and returns kDeadlineExceeded when the
  // deadline passes, or kCancelled when `progress` returns false. Also returns kCancelled if
  // another thread has called End.
  Result<std::string> Run(const std::string& task, const std::string& request,
                          const Deadline& deadline, const Progress& progress);

  // Like Run, but without a deadline. Kills the child if the task reports no progress and no answer
  // for `silence`.
  Result<std::string> RunWhileItMoves(const std::string& task, const std::string& request,
                                      std::chrono::milliseconds silence);

  // Kills the child. Safe to call from any thread, and more than once.
  void End();
  // Returns a message for the user if the child was killed but still hangs in the kernel, or an
  // empty string.
  std::string stuck() const;

 private:
  struct State;
  explicit ImageProcess(std::unique_ptr<State> state);
  Result<std::string> Ask(const std::string& task, const std::string& request, int32_t timeout_ms,
                          const std::function<Deadline()>& until, const Progress& progress);
  std::unique_ptr<State> state_;
};

}  // namespace stasis::checkpoint
