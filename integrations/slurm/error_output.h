// The standard error of a task whose standard output goes elsewhere.
//
// Stasis gives a program without a terminal one log for both, and a pipe to Slurm would be closed
// after a restore. Therefore the program writes its standard error to a file of the task. A dump
// records the file as a log, and a restore opens it again. The launcher copies what is added to
// the file to its own standard error.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"

namespace stasis::slurm {

// Returns true if these descriptors are of different files, pipes or sockets, and none is a
// terminal.
bool AreApart(int out, int err);

// Returns the words that start a program with this file as its standard error: `stasis-step
// --errors FILE -- PROGRAM...`. `step`: path of stasis-step.
std::vector<std::string> WordsWithErrors(const std::string& step, const std::string& file,
                                         const std::vector<std::string>& program);
// If `words` are those words without the first one, makes the file the standard error and executes
// the program; returns the exit code of a failure. Otherwise returns -1.
int ExecWithErrors(const std::vector<std::string>& words);

// Writes to a descriptor whose reader may be slow or stopped, and gives up at the deadline. Errors
// are ignored: Slurm may have closed it.
void WriteUntil(const Deadline& deadline, int target, std::string_view text);

// Copies what is added to a file. Not safe to call from several threads.
class ErrorOutput {
 public:
  using Fallocate = int (*)(int fd, int mode, off_t offset, off_t length);
  // Starts at the end of the file, which is created if it is missing. `fallocate`: for tests.
  static Result<ErrorOutput> Follow(const std::string& path, Fallocate fallocate = nullptr);

  // Becomes readable when something was added. Call Copy() then.
  int fd() const { return watch_.get(); }
  // Copies at most 1 MiB to `target`, no more than it takes at once, and now and then frees the
  // space of what was copied. Returns true if there is more: call it again when `target` is
  // writable. Errors of the target are ignored: Slurm may have closed it.
  bool Copy(int target);
  // Copies everything up to the current end, and gives up at the deadline.
  void CopyAll(int target, const Deadline& deadline);

 private:
  void FreeSpace();

  Fallocate fallocate_ = nullptr;
  UniqueFd watch_;
  UniqueFd file_;
  uint64_t offset_ = 0;  // everything before it was copied
  uint64_t freed_ = 0;   // everything before it was freed
};

}  // namespace stasis::slurm
