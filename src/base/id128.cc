#include "base/id128.h"

#include <sys/random.h>

#include <cerrno>

#include "base/hex.h"

namespace stasis {

std::string Id128::Hex() const { return HexOfBytes(View()); }

Result<Id128> Id128::Random() {
  Id128 id;
  // getrandom(2) never returns fewer bytes for a request of up to 256 bytes.
  if (::getrandom(id.bytes.data(), kBytes, 0) != static_cast<ssize_t>(kBytes)) {
    return FailErrno(errno, "read random numbers");
  }
  return id;
}

}  // namespace stasis
