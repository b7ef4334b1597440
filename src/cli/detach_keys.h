// The keys by which a user leaves a terminal that all other keys belong to.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::cli {

inline constexpr char kDefaultDetachKeys[] = "ctrl-p,ctrl-q";

class DetachKeys {
 public:
  // "ctrl-p,ctrl-q": a comma between the keys, each one character or ctrl- and a letter or one of
  // @[\]^_; up to 8 of them. "none": there are none.
  static Result<DetachKeys> Parse(const std::string& text);

  // What of `typed` is meant for the program. Beginnings of the keys are held back until it is
  // known what they are; true in `detached`: the keys were typed, and what came after them is
  // dropped.
  std::string Filter(std::string_view typed, bool* detached);

 private:
  std::string keys_;
  size_t matched_ = 0;
};

}  // namespace stasis::cli
