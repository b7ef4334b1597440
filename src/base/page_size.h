// The size of the kernel's memory pages, which differs between kernels for arm64.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace stasis {

// Returns 4096, or a larger power of two. Safe to call from any thread.
inline size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace stasis
