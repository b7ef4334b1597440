// Reads a job's log while it grows.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::jobs {

// The start of a log may be a hole (shim/log_bound.h). The reader skips it, up to the start of the
// next line.
class LogReader {
 public:
  // A log that is missing or not a regular file reads as empty.
  LogReader(const std::string& path, uint64_t offset);
  bool regular() const { return regular_; }

  // Returns the next bytes, up to 64 KiB, or an empty string at the current end. Starts again from
  // the beginning after the log was truncated.
  Result<std::string> Next();
  // Copies everything up to the current end to stdout. Returns false if the reader of stdout has
  // closed it.
  Result<bool> Copy();

  // Returns the offset of a line start about `bytes` before the end.
  static uint64_t TailOffset(const std::string& path, uint64_t bytes);

 private:
  // Advances to the next data.
  void SkipHole(uint64_t size);

  UniqueFd fd_;
  uint64_t offset_;
  bool regular_ = false;
  bool in_line_ = false;  // the next data continues a line whose start is gone
};

}  // namespace stasis::jobs
