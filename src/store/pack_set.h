// Writes several packs of one image in parallel. Many file systems allow only one write to a file
// at a time, so a single pack would be written at the speed of one processor.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/image_writer.h"
#include "store/manifest.h"
#include "store/pack.h"
#include "store/write_options.h"

namespace stasis::store {

class PackSet {
 public:
  // `writer` must outlive this object.
  PackSet(ImageWriter& writer, PackLimits limits, uint32_t unit_bytes);

  struct Place {
    uint32_t pack;   // index in the result of Finish
    uint32_t first;  // number of the first unit
  };
  // Appends an extent as PackWriter::Append does, to the pack with the fewest writers. Safe to call
  // from any thread.
  Result<Place> Append(std::span<const PackUnit> units, std::string_view stored,
                       uint64_t logical_bytes, Codec codec);
  // Finishes all packs and returns their records for the manifest. No other thread may append
  // meanwhile.
  Result<std::vector<Pack>> Finish();

 private:
  struct Slot {
    uint32_t index;
    std::unique_ptr<PackWriter> pack;
    unsigned writers = 0;  // threads that append now
    uint64_t bytes = 0;    // appended, including those of the current writers
  };
  Result<Slot*> ChoosePack(uint64_t bytes);

  ImageWriter& writer_;
  const PackLimits limits_;
  const uint32_t unit_bytes_;
  std::mutex mutex_;  // guards all members below, except appends to the packs
  uint64_t bytes_ = 0;
  std::deque<Slot> slots_;  // elements do not move
};

}  // namespace stasis::store
