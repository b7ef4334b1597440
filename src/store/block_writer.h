// The blocks of a new image: cut, named, and each stored once in all the images of its user.
//
// A block that is all zero is stored nowhere. One that an earlier image of the store has is not
// written again: its pack becomes a file of the new image too, by a hard link. All others go into
// new packs, several at a time (pack_set.h), compressed where that is asked for or pays
// (codec_choice.h). Not thread-safe; it has threads of its own.
//
//   auto blocks = BlockWriter::Begin(writer, key, options);
//   blocks->Add({{range, data}, …});   // data stays where it is until Finish
//   auto written = blocks->Finish();
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "image/block_name.h"
#include "image/codec.h"
#include "image/manifest.h"
#include "image/writer.h"
#include "store/pack_set.h"

namespace stasis::store {

struct BlockWriterOptions {
  image::Compression compression = image::Compression::kNone;
  bool share = true;   // false: every block is written, whatever there is
  std::string job_id;  // whose images are looked at first
  uint32_t uid = 0;    // of the program; only images of the same user's are looked at
  std::optional<image::OriginKey> origin;  // only images written with it are shared with; or all
  // Bytes looked at so far; false cancels (kCancelled).
  std::function<bool(uint64_t)> progress;

  // A pack whose blocks were written or compared longer ago than this is read before it is relied
  // on, …
  int64_t trust_ns = 24ll * 3600 * 1'000'000'000;
  // … and others too, as long as it is not more than this for one dump.
  uint64_t always_check_bytes = 512ull << 20;
  size_t max_linked_packs = image::kMaxLinkedPacks;
  PackLimits packs;
};

// A part of memory to be written.
struct BlockSource {
  image::DeviceRange range;  // without its blocks
  std::string_view data;     // of the range's size
  // Of its blocks by the writer's key, computed elsewhere, zero for one that is all zero, whose
  // place in `data` is not looked at; or empty. A block is only written after its name was computed
  // here too: kDataLoss if they differ. One that an earlier image has is not read.
  std::span<const image::Id128> names = {};
  // A byte for each block, 1 for one that is all zero whatever `data` has in its place; or empty.
  std::span<const uint8_t> zeros = {};
};

struct WrittenBlocks {
  image::BlockNaming naming;
  std::vector<image::DeviceRange> ranges;  // as they were added, with their blocks and packs
  std::vector<image::Pack> packs;
  uint64_t zero_bytes = 0;         // of blocks that are all zero, stored nowhere
  uint64_t new_bytes = 0;          // of blocks that were stored now, before compression
  uint64_t stored_bytes = 0;       // of the same, as they are stored
  uint64_t shared_bytes = 0;       // of blocks that earlier images had, before compression
  uint64_t repeated_bytes = 0;     // of blocks that are in this image more than once, but for one
  std::vector<std::string> notes;  // what a user should know: a damaged block of an earlier image

  void DescribeIn(image::Manifest& manifest) const;  // naming, ranges and packs
};

class BlockWriter {
 public:
  // `writer` outlives it.
  static Result<BlockWriter> Begin(image::ImageWriter& writer, image::BlockKey key,
                                   BlockWriterOptions options);
  BlockWriter(BlockWriter&&) noexcept;
  ~BlockWriter();

  // Looks at all their blocks, and writes at once what no earlier image seems to have: several
  // threads work on all of them, so one call for many is quicker than many calls. Names and zeros
  // are needed until it returns.
  Status Add(std::vector<BlockSource> sources);
  Status Add(image::DeviceRange range, std::string_view data,
             std::span<const image::Id128> names = {}, std::span<const uint8_t> zeros = {}) {
    return Add({BlockSource{std::move(range), data, names, zeros}});
  }
  // Decides what is shared, writes the rest, finishes the packs.
  Result<WrittenBlocks> Finish();

 private:
  struct State;
  explicit BlockWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace stasis::store
