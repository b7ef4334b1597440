// Writes the CPU memory of a new image. CRIU's files of pages are split into pages of 4 KiB, and
// equal pages are stored once in all images of a user.
//
// A zero page is not stored. A page that an earlier image of the store has is not stored again: the
// new image gets a hard link to the pack that contains it. All other pages are copied to a new pack
// without using the page cache, and CRIU's file is removed before it has reached the disk. If a
// file is large and most of it is new, it is not copied: an appended index makes it a pack.
//
// A file may also be in memory instead of CRIU's folder. Its new pages go from there to a pack.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/image_writer.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::store {

// A file of pages that is in memory. CRIU's folder has no entry of this name.
struct FileInMemory {
  std::string name;
  std::string_view content;
};

// Call this when CRIU has closed its files, before Commit. Another thread may write blocks
// meanwhile. kAuto does not compress pages, because the storage rarely limits the speed of writing
// CPU memory. Memory of more than 64 GiB, or with too many runs, stays in CRIU's files (and files
// of `in_memory` are written to CRIU's folder), and a note reports this. `in_memory` is not used
// after the call.
Result<WrittenUnits> WritePages(ImageWriter& writer, const UnitNames& names,
                                const WriteOptions& options,
                                const std::vector<FileInMemory>& in_memory = {});

}  // namespace stasis::store
