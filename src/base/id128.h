// Sixteen bytes that identify something: an image, a pack, a unit of memory, or a checksum.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis {

struct Id128 {
  static constexpr size_t kBytes = 16;
  std::array<uint8_t, kBytes> bytes{};

  auto operator<=>(const Id128&) const = default;
  bool IsZero() const { return *this == Id128{}; }
  std::string Hex() const;  // 32 digits
  std::string_view View() const { return {reinterpret_cast<const char*>(bytes.data()), kBytes}; }
  // `raw` must hold at least 16 bytes.
  static Id128 FromRaw(const void* raw) {
    Id128 id;
    std::memcpy(id.bytes.data(), raw, kBytes);
    return id;
  }
  // Returns a new id from the kernel's random numbers.
  static Result<Id128> Random();
};

// The hash function for unordered containers. Returns the first eight bytes, because ids look
// random.
struct Id128Hash {
  size_t operator()(const Id128& id) const {
    size_t value;
    std::memcpy(&value, id.bytes.data(), sizeof value);
    return value;
  }
};

}  // namespace stasis
