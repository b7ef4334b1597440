// Keeps a job's log from growing without end: what lies before its last bytes is given back to the
// file system, as a hole at the beginning of the file. Nothing moves, so the program writes to the
// same file, readers stay where they are, and no line that is being written can be lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/file.h"

namespace stasis::shim {

// Looks at the file now and then, the more often the faster it grows: the kernel would tell us of
// each change (inotify), but of so many files only that 200 jobs of one user are too many.
class LogBound {
 public:
  LogBound() = default;
  // `keep`: bytes. The file is not held open: one that its user removes shall not keep its space.
  LogBound(std::string path, const FileId& id, uint64_t keep);

  // For poll(2): when Serve is to be called again; -1: never.
  int PollTimeout() const { return next_.PollTimeout(); }
  void Serve();

 private:
  // False: this is not to be tried again.
  bool Cut();

  std::string path_;
  FileId id_;
  uint64_t keep_ = 0;
  uint64_t size_ = 0;   // when it was looked at last
  uint64_t given_ = 0;  // bytes at the beginning that are a hole
  std::chrono::milliseconds rest_{};
  Deadline next_;
};

}  // namespace stasis::shim
