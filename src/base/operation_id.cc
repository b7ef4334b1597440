#include "base/operation_id.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cstdint>

namespace stasis {
namespace {

std::string& Own() {
  static std::string id = NewOperationId();
  return id;
}

}  // namespace

std::string NewOperationId() {
  uint64_t number = 0;
  // For so few bytes getrandom(2) fails only if a signal arrives before the pool is initialized.
  ssize_t got = 0;
  while (got != sizeof number) got = ::getrandom(&number, sizeof number, 0);
  return fmt::format("{:016x}", number);
}

bool SetOperationId(const std::string& id) {
  if (id.size() != 16 || id.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  Own() = id;
  return true;
}

const std::string& OperationId() { return Own(); }

}  // namespace stasis
