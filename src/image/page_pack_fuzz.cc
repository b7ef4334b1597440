// A pack of pages, opened and all its pages read. The input is a recipe, as for packs of blocks
// (pack_fuzz.cc): all checksums are right but where it wants them wrong. A recipe of zeros is a
// right pack without pages.
//
//   bytes  of the recipe; numbers are little-endian
//   1      xor on the version
//   1      xor on the footer's length
//   1      xor on its features
//   8      xor on the index's offset
//   8      xor on the number of extents
//   8      xor on the number of pages
//   1      bytes cut off at the end
//   then for each extent, at most 16:
//   1      codec
//   1      bits: 1 its checksum is wrong, 2 that of its first page is, 4 that page has no name,
//          8 the padding is not zero
//   1      pages that it says it has; as many are in the index
//   8      xor on the offset
//   8      xor on the stored bytes
//   2      stored bytes, which follow; without a codec repeated to fill the pages
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/fuzz_input.h"
#include "image/checksum.h"
#include "image/little_endian.h"
#include "image/page_jobs.h"
#include "image/page_pack.h"

namespace stasis::image {
namespace {

struct Baked {
  std::string extents;
  std::string pages;
  uint64_t count = 0;
  uint64_t page_count = 0;
};

// One extent behind the others in `pack`.
void BakeExtent(FuzzInput& recipe, std::string& pack, Baked& index) {
  const uint32_t codec = recipe.Number<uint8_t>();
  const auto bits = recipe.Number<uint8_t>();
  const uint32_t pages = recipe.Number<uint8_t>();
  const auto offset_xor = recipe.Number<uint64_t>();
  const auto stored_xor = recipe.Number<uint64_t>();
  std::string stored(recipe.Bytes(recipe.Number<uint16_t>()));
  if (codec == 0) {
    std::string filled;
    while (filled.size() < pages * size_t{kPageBytes}) filled += stored.empty() ? "x" : stored;
    stored = filled.substr(0, pages * size_t{kPageBytes});
  }
  const uint64_t offset = pack.size();
  pack += stored;
  pack.resize((pack.size() + kPackAlign - 1) / kPackAlign * kPackAlign,
              (bits & 8) != 0 ? 'x' : '\0');
  Id128 checksum = codec == 0 ? Id128{} : Checksum(stored);
  if ((bits & 1) != 0) checksum.bytes[0] ^= 1;
  AppendNumber<uint64_t>(index.extents, offset ^ offset_xor);
  AppendNumber<uint64_t>(index.extents, stored.size() ^ stored_xor);
  AppendNumber<uint32_t>(index.extents, pages);
  AppendNumber<uint32_t>(index.extents, codec);
  AppendNumber<uint64_t>(index.extents, 0);
  index.extents += checksum.View();
  std::string logical = stored;
  if (codec == 1 || codec == 2) {
    logical.assign(pages * size_t{kPageBytes}, '\0');
    (void)Decompress(static_cast<Codec>(codec), stored, logical.data(), logical.size());
  }
  logical.resize(pages * size_t{kPageBytes});
  for (uint32_t i = 0; i < pages; ++i) {
    std::string name = "the name of a pa";
    if ((bits & 4) != 0 && i == 0) name.assign(16, '\0');
    Id128 page = Checksum(std::string_view(logical).substr(i * size_t{kPageBytes}, kPageBytes));
    if ((bits & 2) != 0 && i == 0) page.bytes[0] ^= 1;
    index.pages += name;
    index.pages += page.View();
  }
  index.count += 1;
  index.page_count += pages;
}

std::string Bake(FuzzInput recipe) {
  const uint32_t version = 1u ^ recipe.Number<uint8_t>();
  const uint32_t footer_bytes = 96u ^ recipe.Number<uint8_t>();
  const uint64_t features = recipe.Number<uint8_t>();
  const auto body_xor = recipe.Number<uint64_t>();
  const auto count_xor = recipe.Number<uint64_t>();
  const auto pages_xor = recipe.Number<uint64_t>();
  const size_t cut = recipe.Number<uint8_t>();
  std::string pack;
  Baked index;
  while (index.count < 16 && !recipe.empty()) BakeExtent(recipe, pack, index);
  const uint64_t body = pack.size();
  const std::string raw = index.extents + index.pages;
  pack += raw;
  std::string footer("\x89STPAGE\n");
  AppendNumber(footer, version);
  AppendNumber(footer, footer_bytes);
  AppendNumber(footer, features);
  footer += "the id of a pack";
  AppendNumber<uint64_t>(footer, body ^ body_xor);
  AppendNumber<uint64_t>(footer, index.count ^ count_xor);
  AppendNumber<uint64_t>(footer, index.page_count ^ pages_xor);
  footer += Checksum(raw).View();
  footer += Checksum(footer).View();
  pack += footer;
  pack.resize(pack.size() - std::min(cut, pack.size()));
  return pack;
}

void ReadAll(const std::string& bytes) {
  OpenedFile file{UniqueFd(::memfd_create("pack", MFD_CLOEXEC)), bytes.size()};
  FuzzCheck(WriteAll(file.fd.get(), bytes).has_value());
  auto pack = PagePackReader::Open(std::move(file), "fuzz");
  if (!pack) {
    (void)pack.error().ToString();
    return;
  }
  uint64_t end = 0;
  uint64_t pages = 0;
  for (const PageExtent& extent : pack->extents()) {
    FuzzCheck(extent.offset % kPackAlign == 0 && extent.offset >= end);
    FuzzCheck(extent.end() <= pack->body_bytes() && pack->body_bytes() <= bytes.size());
    FuzzCheck(extent.first == pages && &pack->ExtentOf(extent.first) == &extent);
    FuzzCheck(extent.codec == Codec::kNone ||
              uint64_t{extent.pages} * kPageBytes <= kMaxExtentBytes);
    end = extent.end();
    pages += extent.pages;
  }
  FuzzCheck(pages == pack->pages().size());
  PageJobs jobs({&*pack});
  jobs.Add(0, 0, static_cast<uint32_t>(pages));
  jobs.Plan();
  FuzzCheck(jobs.Used()[0].pages == pages);
  std::vector<char> out(pages * kPageBytes);
  char* const outputs[] = {out.data()};
  for (size_t i = 0; i < jobs.size(); ++i) {
    PageJobs::Place where;
    if (auto read = jobs.Run(i, outputs, where); !read) (void)read.error().ToString();
    FuzzCheck(where.at < out.size());
  }
  (void)jobs.AnyIsHole(0);
}

}  // namespace
}  // namespace stasis::image

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stasis::image::ReadAll(stasis::image::Bake({data, size}));
  return 0;
}
