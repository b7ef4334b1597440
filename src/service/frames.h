// Messages one after another through a pipe: 4 bytes of length, little-endian, and the message.
// Between the daemon and a worker.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace stasis::service {

inline constexpr size_t kMaxFrameBytes = 64u << 20;

// Status of the write; kUnavailable when nobody reads any more.
Status WriteFrame(int fd, const std::string& bytes);
// The next one, waiting for it; nothing at the end of the pipe. kDataLoss: the end came in its
// middle, or it is longer than any can be.
Result<std::optional<std::string>> ReadFrame(int fd);

}  // namespace stasis::service
