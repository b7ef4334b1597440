// Wall-clock time as stored in records.
#pragma once

#include <time.h>

#include <cstdint>

namespace stasis {

// Returns milliseconds since the Unix epoch.
inline int64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

}  // namespace stasis
