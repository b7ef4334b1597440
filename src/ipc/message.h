// Checks and text fields for the messages of all helper protocols. A message is one packet: a
// struct of fixed size that begins with a magic number and a version.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stasis::ipc {

// Returns the reason why a packet of `size` bytes is not a message of this type and version, or
// null if it is one.
template <class Message>
const char* WhyNoMessage(const Message& message, size_t size, uint32_t magic, uint32_t version) {
  if (size != sizeof(Message)) return "a message of the wrong length";
  if (message.magic != magic) return "a message of another protocol";
  if (message.version != version) return "a message of another version";
  return nullptr;
}

// Returns true if the text has a terminator.
template <size_t n>
bool IsTerminated(const char (&text)[n]) {
  return std::memchr(text, '\0', n) != nullptr;
}

// Copies as much of `text` as fits, terminates it and zeroes the rest.
template <size_t n>
void PutText(char (&out)[n], std::string_view text) {
  const size_t size = std::min(text.size(), n - 1);
  std::memcpy(out, text.data(), size);
  std::memset(out + size, 0, n - size);
}

}  // namespace stasis::ipc
