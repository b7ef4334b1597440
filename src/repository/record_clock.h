// Clocks for records that other processes consider abandoned after some time (limits.h).
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "repository/limits.h"

namespace stasis::repository {

inline int64_t UnixNowNs() { return NowMs() * 1'000'000; }

// Measures how long ago this process wrote a record. Time in which the machine was suspended
// counts too.
class RecordClock {
 public:
  explicit RecordClock(std::chrono::nanoseconds valid = kRecordValid) : valid_(valid) {}
  void Written() { written_ns_ = NowNs(); }
  // Returns whether the record may be relied upon for the next request.
  bool IsValid() const { return NowNs() - written_ns_ < valid_.count(); }

 private:
  static int64_t NowNs() {
    timespec now;
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }
  std::chrono::nanoseconds valid_;
  int64_t written_ns_ = 0;
};

}  // namespace stasis::repository
