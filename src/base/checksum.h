// XXH3-128 with seed 0, in its canonical (big-endian) form. It detects damage. It does not protect
// against an attacker who can write both a file and its checksum.
#pragma once

#include <memory>
#include <string_view>

#include "base/id128.h"

namespace stasis {

Id128 Checksum(std::string_view data);

// Computes the checksum of data that arrives in several pieces.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void Reset();
  void Update(std::string_view data);
  Id128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stasis
