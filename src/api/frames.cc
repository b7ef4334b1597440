#include "api/frames.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/file.h"

namespace stasis::api {
namespace {

// Returns false if the pipe ended before the first byte.
Result<bool> ReadExactly(int fd, char* to, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = TEMP_FAILURE_RETRY(::read(fd, to + done, size - done));
    if (n < 0) return FailErrno(errno, "read from a worker");
    if (n == 0 && done == 0) return false;
    if (n == 0) return Fail(Code::kDataLoss, "a worker's message is incomplete");
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Status WriteFrame(int fd, const std::string& bytes) {
  if (bytes.size() > kMaxFrameBytes) {
    return Fail(Code::kResourceExhausted,
                "an answer of " + std::to_string(bytes.size()) + " bytes is too long");
  }
  std::string frame(4, '\0');
  for (size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>(bytes.size() >> (8 * i));
  frame += bytes;
  if (!WriteAll(fd, frame)) return Fail(Code::kUnavailable, "the reader has closed the pipe");
  return {};
}

Result<std::optional<std::string>> ReadFrame(int fd) {
  unsigned char header[4];
  STASIS_ASSIGN(bool more, ReadExactly(fd, reinterpret_cast<char*>(header), sizeof header));
  if (!more) return std::optional<std::string>();
  uint32_t size = 0;
  for (size_t i = 0; i < 4; ++i) size |= static_cast<uint32_t>(header[i]) << (8 * i);
  if (size > kMaxFrameBytes) {
    return Fail(Code::kDataLoss, "a worker's message of " + std::to_string(size) + " bytes");
  }
  std::string bytes(size, '\0');
  STASIS_ASSIGN(more, ReadExactly(fd, bytes.data(), size));
  if (!more && size > 0) return Fail(Code::kDataLoss, "a worker's message is incomplete");
  return std::optional<std::string>(std::move(bytes));
}

}  // namespace stasis::api
