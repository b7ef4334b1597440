// A buffer of one thread, allocated at its first use and left uninitialized. A vector or a string
// would write to every page first, which can take longer than the use of the buffer.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "store/limits.h"

namespace stasis::store {

// Declare the variable `thread_local`. The buffer is aligned for direct reads and writes. A large
// buffer is in huge pages if the system has them, so that its first use causes few page faults.
template <size_t kBytes>
class ThreadBuffer {
 public:
  ThreadBuffer() {
    if (kIsLarge) (void)::madvise(memory_.get(), kBytes, MADV_HUGEPAGE);
  }
  char* data() { return memory_->bytes; }

 private:
  static constexpr size_t kHugePageBytes = 2 << 20;
  static constexpr bool kIsLarge = kBytes % kHugePageBytes == 0 && kBytes > kHugePageBytes;

  struct alignas(kIsLarge ? kHugePageBytes : kPackAlign) Memory {
    char bytes[kBytes];
  };
  const std::unique_ptr<Memory> memory_ = std::make_unique_for_overwrite<Memory>();
};

}  // namespace stasis::store
