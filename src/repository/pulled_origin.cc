#include "repository/pulled_origin.h"

#include <string_view>

#include "base/secret.h"
#include "base/sha256.h"
#include "repository/registry.h"

namespace stasis::repository {

namespace {

Result<std::vector<store::OriginKey>> OwnAndPulled(const Paths& paths, bool only_trusted) {
  STASIS_ASSIGN(store::OriginKey own, store::OriginKeyOf(paths));
  std::vector<store::OriginKey> keys = {std::move(own)};
  STASIS_ASSIGN(auto known, PulledOrigins(paths));
  for (KnownOrigin& origin : known) {
    if (origin.trusted || !only_trusted) keys.push_back(std::move(origin.key));
  }
  return keys;
}

}  // namespace

store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& origin_id) {
  const std::string_view key(reinterpret_cast<const char*>(secret.data()), secret.size());
  const std::string label = "stasis pulled image: " + std::string(origin_id.View());
  return store::OriginKey(HmacSha256(key, label));
}

Result<std::vector<KnownOrigin>> PulledOrigins(const Paths& paths) {
  std::vector<KnownOrigin> known;
  STASIS_ASSIGN(const auto secret, FindBlockSecret(paths));
  if (!secret) return known;
  STASIS_ASSIGN(const auto names, RegisteredNames(paths));
  for (const std::string& name : names) {
    const auto r = FindRegistration(paths, name);
    if (r) known.push_back({r->name, r->trusted, PulledOrigin(*secret, r->origin_id)});
  }
  return known;
}

Result<std::vector<store::OriginKey>> SharableOrigins(const Paths& paths) {
  return OwnAndPulled(paths, /*only_trusted=*/true);
}

Result<std::vector<store::OriginKey>> IndexedHere(const Paths& paths) {
  return OwnAndPulled(paths, /*only_trusted=*/false);
}

}  // namespace stasis::repository
