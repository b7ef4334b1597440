// A buffer of one thread, allocated at its first use and left uninitialised: a vector or a string
// would touch every page first, which can take longer than the read or write it is used for.
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
