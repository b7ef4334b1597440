// Whether a new image may rely on pages that an earlier one of its user has stored: their pack
// becomes a file of the new image too, by a hard link, and they are read where they have not been
// checked for long.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/manifest.h"
#include "image/page_pack.h"
#include "image/writer.h"
#include "store/block_writer.h"
#include "store/earlier_pages.h"

namespace stasis::store {

// Pages of an earlier pack that are needed.
struct NeededPages {
  std::vector<uint32_t> numbers;      // in the pack
  std::set<uint32_t> images;          // whose references make sure that they are there
  std::optional<uint32_t> damaged{};  // the image of a page that is not what it was
  uint64_t bytes() const { return numbers.size() * uint64_t{image::kPageBytes}; }
};

class PageLinks {
 public:
  // Runs work(i) for i in [0, count) at the same time; the first error.
  using InParallel = std::function<Status(size_t count, const std::function<Status(size_t)>& work)>;

  PageLinks(image::ImageWriter& writer, const EarlierPages& earlier, const BlockWriterOptions& how,
            InParallel in_parallel)
      : writer_(writer),
        earlier_(earlier),
        how_(how),
        in_parallel_(std::move(in_parallel)),
        check_budget_(how.always_check_bytes) {}

  // Whether the image refers to the candidate's pages, of that pack, from now on: `linked` is the
  // pack then.
  bool Rely(uint32_t pack, NeededPages& candidate, image::Pack& linked);
  // Why it does not, where a user should know.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Status CheckReferences(const EarlierPages::EarlierPack& pack, NeededPages& candidate,
                         image::Pack& linked);

  image::ImageWriter& writer_;
  const EarlierPages& earlier_;
  const BlockWriterOptions& how_;
  const InParallel in_parallel_;
  uint64_t check_budget_;
  std::vector<std::string> notes_;
};

}  // namespace stasis::store
