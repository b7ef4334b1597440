// Times as manifests store them: nanoseconds since the Unix epoch.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace stasis::store {

inline int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

inline int64_t Ns(const timespec& time) { return time.tv_sec * 1'000'000'000ll + time.tv_nsec; }

}  // namespace stasis::store
