#include "base/id128.h"

#include <sys/random.h>

#include <cerrno>

namespace stasis {

std::string Id128::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Id128> Id128::Random() {
  Id128 id;
  // Up to 256 bytes come whole, once the kernel's pool is ready.
  if (::getrandom(id.bytes.data(), kBytes, 0) != static_cast<ssize_t>(kBytes)) {
    return FailErrno(errno, "read random numbers");
  }
  return id;
}

}  // namespace stasis
