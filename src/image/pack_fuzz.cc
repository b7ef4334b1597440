// A pack, opened and all its blocks read. The input is a recipe: what a right pack holds, and what
// is wrong about this one. All checksums are right but where the recipe wants them wrong, so that
// what stands behind them is reached. A recipe of zeros is a right pack without blocks.
//
//   bytes  of the recipe; numbers are little-endian
//   1      xor on the version: bits 0 and 1; bit 7: version 1 instead of 2
//   1      xor on the header's length
//   1      xor on its features
//   8      xor on the index's offset
//   8      xor on the number of entries
//   1      bytes cut off at the end
//   then for each block, at most 16:
//   1      codec
//   1      bits: 1 the checksum is wrong, 2 the name is that of the block before, 4 there is no
//   name,
//          8 the padding is not zero, 16 (of the first) a whole block of zeros is stored too
//   4      logical bytes; 0 is as many as are stored
//   8      xor on the offset
//   4      xor on the stored bytes
//   2      stored bytes, which follow
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/fuzz_input.h"
#include "image/checksum.h"
#include "image/little_endian.h"
#include "image/pack.h"

namespace stasis::image {
namespace {

void AddSealed(std::string& to, std::string part) {
  part += Checksum(part).View();
  to += part;
}

std::string Bake(FuzzInput recipe) {
  auto version_bits = recipe.Number<uint8_t>();
  const uint32_t version = ((version_bits & 0x80) != 0 ? 1 : 2) ^ (version_bits & 3u);
  const uint32_t header_bytes = 4096 ^ recipe.Number<uint8_t>();
  const uint64_t features = recipe.Number<uint8_t>();
  const auto index_offset_xor = recipe.Number<uint64_t>();
  const auto count_xor = recipe.Number<uint64_t>();
  const size_t cut = recipe.Number<uint8_t>();

  std::string header("\x89STPACK\n");
  AppendNumber(header, version);
  AppendNumber(header, header_bytes);
  AppendNumber(header, features);
  header += "the id of a pack";
  header.resize(4096 - Id128::kBytes);
  std::string pack;
  AddSealed(pack, header);

  std::string index;
  uint64_t count = 0;
  for (; count < 16 && !recipe.empty(); ++count) {
    const uint32_t codec = recipe.Number<uint8_t>();
    const auto bits = recipe.Number<uint8_t>();
    auto logical_bytes = recipe.Number<uint32_t>();
    const auto offset_xor = recipe.Number<uint64_t>();
    const auto stored_xor = recipe.Number<uint32_t>();
    std::string stored(recipe.Bytes(recipe.Number<uint16_t>()));
    if ((bits & 16) != 0 && count == 0) stored.resize(stored.size() + kBlockBytes);
    if (logical_bytes == 0) logical_bytes = static_cast<uint32_t>(stored.size());

    const uint64_t offset = pack.size();
    const uint32_t claimed = static_cast<uint32_t>(stored.size()) ^ stored_xor;
    pack += stored;
    pack.resize((pack.size() + kPackAlign - 1) / kPackAlign * kPackAlign,
                (bits & 8) != 0 ? 'x' : '\0');
    // Of what the entry claims, where that is there.
    Id128 checksum = Checksum(std::string_view(pack).substr(offset, claimed));
    if ((bits & 1) != 0) checksum.bytes[0] ^= 1;
    std::string name = "the name of a bl";
    name[0] = static_cast<char>((bits & 2) != 0 ? count - 1 : count);
    if ((bits & 4) != 0) name.assign(16, '\0');

    index += name;
    AppendNumber<uint64_t>(index, offset ^ offset_xor);
    AppendNumber<uint32_t>(index, claimed);
    AppendNumber<uint32_t>(index, logical_bytes);
    AppendNumber<uint32_t>(index, codec);
    index.append(12, '\0');
    index += checksum.View();
  }
  const uint64_t index_offset = pack.size();
  pack += index;
  std::string footer("\x89STPEND\n");
  AppendNumber(footer, version);
  AppendNumber<uint32_t>(footer, 64);
  AppendNumber<uint64_t>(footer, index_offset ^ index_offset_xor);
  AppendNumber<uint64_t>(footer, count ^ count_xor);
  footer += Checksum(index).View();
  AddSealed(pack, footer);
  pack.resize(pack.size() - std::min(cut, pack.size()));
  return pack;
}

constexpr size_t kGuardBytes = 128;
constexpr char kGuard = 'G';

void ReadAll(const std::string& bytes) {
  OpenedFile file{UniqueFd(::memfd_create("pack", MFD_CLOEXEC)), bytes.size()};
  FuzzCheck(WriteAll(file.fd.get(), bytes).has_value());
  auto pack = PackReader::Open(std::move(file), "fuzz");
  if (!pack) {
    (void)pack.error().ToString();
    return;
  }
  std::vector<const PackEntry*> entries;
  for (const PackEntry& entry : pack->entries()) {
    FuzzCheck(entry.logical_bytes > 0 && entry.logical_bytes <= kBlockBytes);
    FuzzCheck(entry.offset % kPackAlign == 0 && entry.offset >= kPackAlign);
    FuzzCheck(entry.offset + entry.padded_bytes() <= bytes.size());
    FuzzCheck(pack->Find(entry.name) == &entry);
    // The codecs' libraries are not compiled with a sanitizer: what they write too far shows here.
    std::vector<char> out(entry.logical_bytes + kGuardBytes, kGuard);
    auto read = pack->Read(entry, out.data());
    auto checked = pack->Check(entry);
    FuzzCheck(read || !checked);
    FuzzCheck(std::all_of(out.end() - kGuardBytes, out.end(), [](char c) { return c == kGuard; }));
    entries.push_back(&entry);
  }
  (void)pack->AnyIsHole(std::move(entries));
}

}  // namespace
}  // namespace stasis::image

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stasis::image::ReadAll(stasis::image::Bake({data, size}));
  return 0;
}
