#include "base/checksum.h"

// Makes xxhash a header-only library, so that the compiler can inline and optimize its loops.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stasis {

namespace {

Id128 Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return Id128::FromRaw(canonical.digest);
}

}  // namespace

struct ChecksumStream::State {
  XXH3_state_t xxh;
};

Id128 Checksum(std::string_view data) { return Canonical(XXH3_128bits(data.data(), data.size())); }

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) { Reset(); }
ChecksumStream::~ChecksumStream() = default;
void ChecksumStream::Reset() { XXH3_128bits_reset(&state_->xxh); }
void ChecksumStream::Update(std::string_view data) {
  XXH3_128bits_update(&state_->xxh, data.data(), data.size());
}
Id128 ChecksumStream::Finish() const { return Canonical(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace stasis
