#include "repository/pack_upload.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>

#include "repository/item_names.h"
#include "repository/limits.h"
#include "store/thread_buffer.h"

namespace stasis::repository {

namespace {

// A unit is stored uncompressed if compression saves less than this fraction of it.
constexpr uint32_t kLeastSaving = 16;  // one sixteenth
// Units are read, checked and sealed in groups of about this size, small enough to stay in the
// processor's cache.
constexpr uint64_t kSealGroupBytes = 1 << 20;

// Copies a unit to `to`, compressed if that makes it small enough, and returns its stored size.
// `to` may be the unit's own address or a lower one.
uint32_t Store(std::string_view plain, store::Codec codec, char* to) {
  const uint32_t bytes = static_cast<uint32_t>(plain.size());
  if (codec != store::Codec::kNone) {
    thread_local store::ThreadBuffer<kMaxUnitBytes> scratch;
    const size_t stored =
        store::Compress(codec, plain, scratch.data(), bytes - std::max(bytes / kLeastSaving, 1u));
    if (stored > 0) {
      std::memcpy(to, scratch.data(), stored);
      return static_cast<uint32_t>(stored);
    }
  }
  if (to != plain.data()) std::memmove(to, plain.data(), bytes);
  return bytes;
}

}  // namespace

Result<PackTable> UploadPack(const Repository& repository, const PackSource& source,
                             const NewPack& pack, const objects::CallOptions& call) {
  thread_local store::ThreadBuffer<kMaxPackBytes> memory;
  char* const buffer = memory.data();
  STASIS_ASSIGN(const auto sealer, repository.sealing().NewPack());
  PackTable table(pack.id.number, sealer->id());
  uint64_t end = 0;  // of the sealed units in the buffer
  for (size_t next = 0; next < pack.items.size();) {
    // Units are read directly into the buffer in which they are sealed in place. Each is followed
    // by space for its tag.
    std::vector<ImageUnits::Target> targets;
    uint64_t at = end;
    while (next < pack.items.size() && at - end < kSealGroupBytes) {
      targets.push_back({pack.items[next], at});
      at += uint64_t{source.units.items()[pack.items[next++]].bytes} + kTagBytes;
    }
    assert(at <= kMaxPackBytes);
    STASIS_TRY(source.units.Read(targets, buffer));
    STASIS_TRY(CheckNames(source.units, source.names, targets, buffer, source.expected));
    for (const ImageUnits::Target& target : targets) {
      const uint32_t bytes = source.units.items()[target.item].bytes;
      const uint32_t stored = Store({buffer + target.at, bytes}, source.codec, buffer + end);
      STASIS_TRY(sealer->Seal({buffer + end, stored}, buffer + end));
      table.Add(bytes, stored, stored < bytes ? source.codec : store::Codec::kNone);
      end += uint64_t{stored} + kTagBytes;
    }
  }
  const std::string_view parts[] = {{buffer, end}};
  STASIS_TRY(repository.store().Put(PackKey(pack.id), parts, call));
  return table;
}

}  // namespace stasis::repository
