#include "store/origin.h"

#include "base/secret.h"

namespace stasis::store {

OriginKey::OriginKey(const BlockSecret& secret) {
  const std::string_view key(reinterpret_cast<const char*>(secret.data()), secret.size());
  key_ = HmacSha256(key, "stasis image origin: MAC key");
  id_ = Id128::FromRaw(HmacSha256(key, "stasis image origin: key id").data());
}

OriginMac OriginKey::Sign(const Sha256Digest& digest) const {
  return {id_, HmacSha256(View(key_), View(digest))};
}

bool OriginKey::Verify(const OriginMac& origin, const Sha256Digest& digest) const {
  const OriginMac expected = Sign(digest);
  // Compare all bytes, so that the time does not reveal where the first wrong byte is.
  uint8_t difference = 0;
  for (size_t i = 0; i < expected.mac.size(); ++i) difference |= expected.mac[i] ^ origin.mac[i];
  return origin.key_id == id_ && difference == 0;
}

Result<OriginKey> OriginKeyOf(const Paths& paths) {
  STASIS_ASSIGN(BlockSecret secret, BlockSecretOf(paths));
  return OriginKey(secret);
}

Result<std::optional<OriginKey>> FindOriginKey(const Paths& paths) {
  STASIS_ASSIGN(auto secret, FindBlockSecret(paths));
  if (!secret) return std::nullopt;
  return OriginKey(*secret);
}

}  // namespace stasis::store
