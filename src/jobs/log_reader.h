// What a job's log holds, as it grows.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::jobs {

// The beginning of a log may have been given back to the file system (shim/log_bound.h): it is left
// out, up to the next line's beginning.
class LogReader {
 public:
  // A log that is not there, or is no regular file, reads as empty.
  LogReader(const std::string& path, uint64_t offset);
  bool regular() const { return regular_; }

  // What comes next, up to 64 KiB; empty at the end, where more may come. Begins anew when somebody
  // has emptied the log.
  Result<std::string> Next();
  // All of that to stdout, up to the end. False: nobody reads that any more.
  Result<bool> Copy();

  // Where about `bytes` before the end a line begins.
  static uint64_t TailOffset(const std::string& path, uint64_t bytes);

 private:
  // Moves on to where there is data.
  void SkipHole(uint64_t size);

  UniqueFd fd_;
  uint64_t offset_;
  bool regular_ = false;
  bool in_line_ = false;  // what comes next is the rest of a line whose beginning is gone
};

}  // namespace stasis::jobs
