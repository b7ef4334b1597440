// Little-endian numbers at fixed offsets of a byte layout.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace stasis {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

template <class T>
void AppendNumber(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// `data` must hold offset + sizeof(T) bytes.
template <class T>
T NumberAt(std::string_view data, size_t offset) {
  T value;
  std::memcpy(&value, data.data() + offset, sizeof value);
  return value;
}

}  // namespace stasis
