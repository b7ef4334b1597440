// A pack of pages: one file with pages of CPU memory, and an index of them at its end; what CRIU
// wrote becomes one by having an index appended. docs/format/image.md has the layout. It never
// changes once it is finished, but that `gc` makes holes where pages were that no image needs.
//
// A page has a number: its place in the index. Pages lie in extents, one behind the other; those of
// a compressed extent can only be read together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "image/beneath.h"
#include "image/codec.h"
#include "image/id128.h"
#include "image/limits.h"

namespace stasis::image {

struct PageExtent {
  uint64_t offset = 0;        // in the file, a multiple of 4096
  uint64_t stored_bytes = 0;  // without a codec 4096 a page
  uint32_t pages = 0;
  Codec codec = Codec::kNone;
  Id128 checksum;      // of the stored bytes, with a codec; else each page has its own
  uint32_t first = 0;  // number of its first page; follows from the extents before

  uint64_t padded_bytes() const {
    return (stored_bytes + kPackAlign - 1) / kPackAlign * kPackAlign;
  }
  uint64_t end() const { return offset + padded_bytes(); }
};

struct PackPage {
  Id128 name;      // block_name.h; never zero
  Id128 checksum;  // XXH3-128 of its 4096 bytes
};

struct PageIndex {
  std::vector<PageExtent> extents;  // in the order of the file, not overlapping
  std::vector<PackPage> pages;  // in the order of the extents; a name may be there more than once
};

// Makes a pack of a file whose first `body_bytes` bytes, a multiple of 4096, are the extents:
// appends the index and shortens what is longer. Returns the index's checksum. `path` names the
// file in errors.
Result<Id128> FinishPagePack(int fd, const std::string& path, const Id128& id, uint64_t body_bytes,
                             const PageIndex& index);

// All but Open may be called by several threads at once.
class PagePackReader {
 public:
  // Reads and checks the index; errors as PackReader's.
  static Result<PagePackReader> Open(OpenedFile file, const std::string& what);

  const Id128& id() const { return id_; }
  const Id128& index_checksum() const { return index_checksum_; }
  uint64_t size_bytes() const { return file_.size_bytes; }
  uint64_t body_bytes() const { return body_bytes_; }
  int fd() const { return file_.fd.get(); }
  const std::vector<PageExtent>& extents() const { return index_.extents; }
  const std::vector<PackPage>& pages() const { return index_.pages; }
  // The extent that has the page.
  const PageExtent& ExtentOf(uint32_t page) const;

  // A compressed extent, all its pages to `out`, checked as it is stored; pages are not compared.
  Status ReadExtent(const PageExtent& extent, char* out) const;
  // `data` is what was read as the page: kDataLoss when it is not.
  Status CheckPage(uint32_t page, const char* data) const;

 private:
  PagePackReader(OpenedFile file, std::string what)
      : file_(std::move(file)), what_(std::move(what)) {}
  Status ReadIndex();
  Status CheckExtent(const PageExtent& extent, uint64_t previous_end) const;
  tl::unexpected<Error> Damaged(const std::string& how) const;

  OpenedFile file_;
  std::string what_;
  Id128 id_;
  Id128 index_checksum_;
  uint64_t body_bytes_ = 0;
  PageIndex index_;
};

}  // namespace stasis::image
