// Detects the key sequence that detaches from a terminal.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::api {

inline constexpr char kDefaultDetachKeys[] = "ctrl-p,ctrl-q";

class DetachKeys {
 public:
  // Parses "ctrl-p,ctrl-q": up to 8 keys separated by commas, each a character, or ctrl- followed
  // by a letter or one of @[\]^_. "none" disables detaching.
  static Result<DetachKeys> Parse(const std::string& text);

  // Returns the part of `typed` that is for the program. Holds back a partial sequence until
  // further bytes complete or break it. Sets `detached` if the sequence was completed; bytes after
  // it are dropped.
  std::string Filter(std::string_view typed, bool* detached);

 private:
  std::string keys_;
  size_t matched_ = 0;
};

}  // namespace stasis::api
