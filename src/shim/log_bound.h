// Bounds the size of a job's log. Frees the space of old output by punching a hole at the start of
// the file. Offsets do not change, so the program keeps writing to the same file, readers keep
// their position, and a line that is being written is not lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/file.h"

namespace stasis::shim {

// Polls the file, more often while it grows. inotify would report each change, but its limit per
// user is too low for 200 jobs.
class LogBound {
 public:
  LogBound() = default;
  // `keep` is in bytes. The file is not kept open, so that removing it frees its space.
  LogBound(std::string path, const FileId& id, uint64_t keep);

  // A timeout for poll(2): milliseconds until the next call of Serve; -1: never.
  int PollTimeout() const { return next_.PollTimeout(); }
  void Serve();

 private:
  // Frees old output. Returns false if the log was replaced or its file system does not support
  // holes, so that further calls are useless.
  bool Cut();

  std::string path_;
  FileId id_;
  uint64_t keep_ = 0;
  uint64_t size_ = 0;   // at the last check
  uint64_t given_ = 0;  // size of the hole at the start
  std::chrono::milliseconds rest_{};
  Deadline next_;
};

}  // namespace stasis::shim
