// Makes untrusted text safe to print in messages.
#pragma once

#include <string>
#include <string_view>

namespace stasis::objects {

// Returns at most `max_bytes` of `text`, on one line and without control characters.
inline std::string Printable(std::string_view text, size_t max_bytes = 200) {
  std::string shown(text.substr(0, max_bytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  if (text.size() > max_bytes) shown += "...";
  return shown;
}

}  // namespace stasis::objects
