// The time of day, as records have it.
#pragma once

#include <time.h>

#include <cstdint>

namespace stasis {

// Milliseconds since 1970.
inline int64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

}  // namespace stasis
