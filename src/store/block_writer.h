// GPU memory of a new image: cut into blocks of 2 MiB, each stored once in all images of its user.
//
// A zero block is not stored. A block that an earlier image of the store has is not written again:
// its pack becomes a file of the new image too, by a hard link. All others go to new packs, several
// at a time (pack_set.h), compressed if that is asked for or pays (codec_choice.h).
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
  // Universal hashes of its blocks (UnitNames::key), computed elsewhere, zero for a zero block,
  // whose place in `data` is not looked at; or empty. Before a block is written, its hash is
  // computed here too; a block that an earlier image has is not read.
  std::span<const Id128> hashes = {};
  // One byte for each block, 1 for a block that is zero whatever `data` has in its place; or empty.
  std::span<const uint8_t> zeros = {};
};

// Writes all blocks. Returns kDataLoss if a block does not have the hash given for it.
Result<WrittenUnits> WriteBlocks(ImageWriter& writer, const UnitNames& names,
                                 std::vector<BlockSource> sources, const WriteOptions& options);

}  // namespace stasis::store
