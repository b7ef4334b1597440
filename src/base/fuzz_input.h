// What the fuzzers (x_fuzz.cc) share: an input read as numbers and bytes, and a check that ends the
// run. After its end an input goes on with zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <source_location>
#include <string_view>

namespace stasis {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  template <class T>
  T Number() {
    T value{};
    std::string_view bytes = Bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // At most that many.
  std::string_view Bytes(size_t count) {
    std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

// What must hold of everything that was read without an error.
inline void FuzzCheck(bool holds, std::source_location here = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%u: it does not hold\n", here.file_name(), unsigned{here.line()});
  std::abort();
}

}  // namespace stasis
