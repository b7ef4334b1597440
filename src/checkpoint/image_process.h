// The process that writes an image. A write may hang in the kernel where nothing ends it (a frozen
// file system, a dead disk), so it is made by a child: the process that runs the plan gives it up
// at a deadline, gives the program back, and ends.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::checkpoint {

class ImageProcess {
 public:
  // Bytes done, of all (0: unknown). Returns false to cancel.
  using Progress = std::function<bool(uint64_t done, uint64_t total)>;
  // Runs in the child, with what the caller's memory held at Start and what earlier tasks have
  // changed. `progress` also returns false when the deadline has passed.
  using Task = std::function<Result<std::string>(const std::string& request, const Progress&)>;

  // Forks. The child has one thread for each task (none more for one), holds no descriptor but
  // `keep_fds`, and is killed when the calling thread ends. `place` is the store, for messages.
  static Result<std::unique_ptr<ImageProcess>> Start(std::map<std::string, Task> tasks,
                                                     const std::vector<int>& keep_fds,
                                                     std::string place);
  ~ImageProcess();
  ImageProcess(const ImageProcess&) = delete;
  ImageProcess& operator=(const ImageProcess&) = delete;

  // Runs a task and returns its answer. Different tasks may run at the same time, and each again
  // when it has answered.
  // When the deadline passes, or `progress` returns false, the child is ended: kDeadlineExceeded,
  // kCancelled. kCancelled too when it was ended by another thread.
  Result<std::string> Run(const std::string& task, const std::string& request,
                          const Deadline& deadline, const Progress& progress);

  // The same for a task that may take as long as it likes: the child is ended when it has neither
  // answered nor told its progress for `silence`.
  Result<std::string> RunWhileItMoves(const std::string& task, const std::string& request,
                                      std::chrono::milliseconds silence);

  // Kills the child. Safe from any thread, and again.
  void End();
  // The child hangs in the kernel and has outlived End: what it is, for the user. Else empty.
  std::string stuck() const;

 private:
  struct State;
  explicit ImageProcess(std::unique_ptr<State> state);
  Result<std::string> Ask(const std::string& task, const std::string& request, int32_t timeout_ms,
                          const std::function<Deadline()>& until, const Progress& progress);
  std::unique_ptr<State> state_;
};

}  // namespace stasis::checkpoint
