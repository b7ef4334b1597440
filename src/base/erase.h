// Erases text that holds a secret.
#pragma once

#include <string.h>

#include <string>

namespace stasis {

// Overwrites the contents, then empties the string.
inline void Erase(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace stasis
