// Frames between the daemon and a worker: 4 bytes of length, little-endian, then the message.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace stasis::api {

inline constexpr size_t kMaxFrameBytes = 64u << 20;

// Returns kUnavailable if the reader has closed the pipe.
Status WriteFrame(int fd, const std::string& bytes);
// Waits for the next message. Returns no value at the end of the pipe, and kDataLoss if the pipe
// ends inside a message or if a message is longer than kMaxFrameBytes.
Result<std::optional<std::string>> ReadFrame(int fd);

}  // namespace stasis::api
