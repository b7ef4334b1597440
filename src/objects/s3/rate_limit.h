// Limits the rate at which bytes are moved.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/deadline.h"

namespace stasis::objects::s3 {

// A piece may be moved when the earlier pieces would have been transferred at this rate. After an
// idle time, later pieces may catch up by at most a tenth of a second. Not thread-safe.
class RateLimit {
 public:
  using TimePoint = Deadline::Clock::time_point;

  // There is no limit if `bytes_per_second` is 0.
  explicit RateLimit(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Returns true if a piece may be moved at `now`.
  bool Allows(TimePoint now) const { return bytes_per_second_ == 0 || now >= free_at_; }
  // Counts a piece that is moved at `now`.
  void Take(TimePoint now, size_t bytes);
  // Returns the time until Allows() returns true, rounded up.
  std::chrono::milliseconds WaitAt(TimePoint now) const;
  // Returns the size of a piece that takes a tenth of a second, but at least 1 KiB, and at most
  // `most`.
  size_t PieceBytes(size_t most) const;

 private:
  const uint64_t bytes_per_second_;
  TimePoint free_at_{};
};

}  // namespace stasis::objects::s3
