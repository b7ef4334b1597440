// CRIU's files of pages in the folder of a new image, and the positions of their pages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "store/image_writer.h"

namespace stasis::store {

struct PageSource {
  std::string name;
  UniqueFd fd;
  uint32_t first = 0;  // position of its first page among those of all files
  uint32_t pages = 0;
  bool in_place = false;  // the file is to become a pack without a copy of its pages
  bool is_pack = false;   // the file is a pack
};

// Returns the files whose size is a multiple of the page size; others stay files of the image. Adds
// a note and returns no files if there are more pages than one pack can have.
Result<std::vector<PageSource>> OpenPageSources(const ImageWriter& writer,
                                                std::vector<std::string>& notes);

}  // namespace stasis::store
