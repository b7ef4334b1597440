// CRIU's files of pages in the folder of a new image: which of them can be cut, and the numbers of
// their pages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "image/writer.h"

namespace stasis::store {

// One of CRIU's files.
struct PageSource {
  std::string name;
  UniqueFd fd;
  uint32_t first = 0;  // number of its first page among those of all files
  uint32_t pages = 0;
  bool in_place = false;  // it is to stay where it is
};

// Files that cannot be cut are not among them, and stay files of the image. None is, with a note,
// when there are more pages than one image can number.
Result<std::vector<PageSource>> OpenPageSources(const image::ImageWriter& writer,
                                                std::vector<std::string>& notes);

}  // namespace stasis::store
