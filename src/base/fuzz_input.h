// Helpers for the fuzzers (x_fuzz.cc): reads an input as numbers and bytes, and aborts on a failed
// check. Reading past the end of the input gives zeros.
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
  // Returns at most `count` bytes.
  std::string_view Bytes(size_t count) {
    std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

// Aborts the fuzz run if `holds` is false.
inline void FuzzCheck(bool holds, std::source_location here = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%u: the check failed\n", here.file_name(), unsigned{here.line()});
  std::abort();
}

}  // namespace stasis
