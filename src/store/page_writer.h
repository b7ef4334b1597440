// CPU memory of a new image: CRIU's files of pages, cut into pages of 4096 bytes, each stored once
// in all the images of its user.
//
// A page that is all zero is stored nowhere. One that an earlier image of the store has is not
// stored again: its pack becomes a file of the new image too, by a hard link. All others are copied
// to a new pack, past the page cache, and CRIU's file goes before it has reached the disk. A file
// of which most is new stays where it is and becomes a pack itself, by an index at its end.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "image/block_name.h"
#include "image/manifest.h"
#include "image/writer.h"
#include "store/block_writer.h"

namespace stasis::store {

struct WrittenPages {
  image::BlockNaming naming;
  std::vector<image::PageFile> files;
  std::vector<image::Pack> packs;  // the runs' indexes are into these
  uint64_t zero_bytes = 0;         // stored nowhere
  uint64_t new_bytes = 0;          // that were stored now, before compression
  uint64_t stored_bytes = 0;       // the same, as they are stored
  uint64_t shared_bytes = 0;       // that earlier images had
  uint64_t repeated_bytes = 0;     // in this image more than once, but for one
  std::vector<std::string> notes;  // what a user should know

  void DescribeIn(image::Manifest& manifest) const;  // naming, files, and packs behind those there
};

// To be called when CRIU has closed its files, before Commit; another thread may write blocks
// meanwhile. `how`: kAuto compresses no pages, CPU memory never waits for storage that long.
// Nothing was cut when there are more than 64 GiB: then CRIU's files stay what they are, with a
// note.
Result<WrittenPages> WritePages(image::ImageWriter& writer, const image::BlockKey& key,
                                const BlockWriterOptions& how);

}  // namespace stasis::store
