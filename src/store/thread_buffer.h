// A buffer of one thread, allocated at its first use and left uninitialized. A vector or a string
// would write to every page first, which can take longer than the use of the buffer.
#pragma once

#include <cstddef>
#include <memory>

#include "store/limits.h"

namespace stasis::store {

// Declare it `thread_local`. It is aligned for direct reads and writes.
template <size_t kBytes>
class ThreadBuffer {
 public:
  char* data() { return memory_->bytes; }

 private:
  struct alignas(kPackAlign) Memory {
    char bytes[kBytes];
  };
  const std::unique_ptr<Memory> memory_ = std::make_unique_for_overwrite<Memory>();
};

}  // namespace stasis::store
