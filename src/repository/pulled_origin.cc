#include "repository/pulled_origin.h"

#include <string_view>

#include "base/secret.h"
#include "base/sha256.h"
#include "repository/registry.h"

namespace stasis::repository {

store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& repository) {
  const std::string_view key(reinterpret_cast<const char*>(secret.data()), secret.size());
  const std::string label = "stasis pulled image: " + std::string(repository.View());
  return store::OriginKey(HmacSha256(key, label));
}

Result<std::vector<KnownOrigin>> PulledOrigins(const Paths& paths) {
  std::vector<KnownOrigin> known;
  STASIS_ASSIGN(const auto secret, FindBlockSecret(paths));
  if (!secret) return known;
  STASIS_ASSIGN(const auto registrations, ListRegistrations(paths));
  for (const Registration& r : registrations) {
    known.push_back({r.name, r.trusted, PulledOrigin(*secret, r.id)});
  }
  return known;
}

Result<std::vector<store::OriginKey>> WrittenHere(const Paths& paths) {
  STASIS_ASSIGN(store::OriginKey own, store::OriginKeyOf(paths));
  std::vector<store::OriginKey> keys = {std::move(own)};
  STASIS_ASSIGN(auto known, PulledOrigins(paths));
  for (KnownOrigin& origin : known) keys.push_back(std::move(origin.key));
  return keys;
}

}  // namespace stasis::repository
