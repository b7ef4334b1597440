// CPU memory of a new image: CRIU's files of pages, cut into pages of 4 KiB, each stored once in
// all images of its user.
//
// A zero page is not stored. A page that an earlier image of the store has is not stored again: its
// pack becomes a file of the new image too, by a hard link. All others are copied to a new pack,
// past the page cache, and CRIU's file is removed before it has reached the disk. A large file of
// which most is new stays where it is and becomes a pack itself: an index is appended.
#pragma once

#include "base/result.h"
#include "store/image_writer.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::store {

// Call it when CRIU has closed its files, before Commit; another thread may write blocks meanwhile.
// kAuto compresses no pages, because CPU memory never waits for the storage that long. More than 64
// GiB, and memory that is too scattered, stays in CRIU's files, with a note.
Result<WrittenUnits> WritePages(ImageWriter& writer, const UnitNames& names,
                                const WriteOptions& options);

}  // namespace stasis::store
