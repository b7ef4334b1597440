// XXH3-128 with seed 0, in its canonical (big-endian) form. It finds damage; it does not stop an
// adversary who can write both a file and the manifest that describes it.
#pragma once

#include <memory>
#include <string_view>

#include "image/id128.h"

namespace stasis::image {

Id128 Checksum(std::string_view data);

// The same over data that comes in pieces.
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

}  // namespace stasis::image
