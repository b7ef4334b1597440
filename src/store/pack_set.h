// The packs that one image writes, several at a time: many file systems let one writer at a time
// into a file, so a pack for all would be as fast as one processor.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "image/manifest.h"
#include "image/pack.h"
#include "image/writer.h"

namespace stasis::store {

struct PackLimits {
  // Another pack is begun for each so many bytes: what changes little stays in few packs, which
  // later images link to.
  uint64_t bytes = 128ull << 20;
  // At most so many; 0: one for each processor, 2 to 16.
  unsigned count = 0;
};

class PackSet {
 public:
  // `writer` outlives it.
  PackSet(image::ImageWriter& writer, PackLimits limits);

  // As PackWriter::Append, to the pack that the fewest are writing to; returns its place in what
  // Finish returns. May be called by several threads at once.
  Result<uint32_t> Append(const image::Id128& name, std::string_view stored, size_t logical_bytes,
                          image::Codec codec);
  // Ends all packs; what the manifest says of each, but for when it was written. Not while anybody
  // appends.
  Result<std::vector<image::Pack>> Finish();

 private:
  struct Slot {
    image::PackWriter pack;
    unsigned writers = 0;  // under way
    uint64_t bytes = 0;    // appended, or about to be
  };
  Result<uint32_t> Take(uint64_t bytes);

  image::ImageWriter& writer_;
  const PackLimits limits_;
  std::mutex mutex_;  // of what follows; of each pack but for its appends
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace stasis::store
