// Writes the GPU memory of a new image in blocks of 2 MiB. Equal blocks are stored once in all
// images of a user.
//
// A zero block is not stored. A block that an earlier image of the store has is not written again:
// the new image gets a hard link to the pack that contains it. All other blocks are written to
// several new packs in parallel (pack_set.h). They are compressed if the user asked for it or if it
// saves time (codec_choice.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/image_writer.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::store {

// A part of GPU memory.
struct BlockSource {
  DeviceRange range;      // without its runs
  std::string_view data;  // of the range's size
  // The hash of each block, with the key UnitNames::key, if the caller has computed the hashes;
  // otherwise empty. A zero hash means a zero block, whose bytes in `data` are ignored. Before a
  // block is written, its hash is computed again and compared. A block that an earlier image has is
  // not read.
  std::span<const Id128> hashes = {};
  // One byte for each block: 1 if the block is zero, whatever `data` contains. May be empty.
  std::span<const uint8_t> zeros = {};
};

// Writes all blocks. Returns kDataLoss if a block does not have the hash that the caller gave.
Result<WrittenUnits> WriteBlocks(ImageWriter& writer, const UnitNames& names,
                                 std::vector<BlockSource> sources, const WriteOptions& options);

}  // namespace stasis::store
