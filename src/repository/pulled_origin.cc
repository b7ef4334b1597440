#include "repository/pulled_origin.h"

#include <string>
#include <string_view>

#include "base/sha256.h"

namespace stasis::repository {

store::OriginKey PulledOrigin(const BlockSecret& secret, const Id128& repository) {
  const std::string_view key(reinterpret_cast<const char*>(secret.data()), secret.size());
  const std::string label = "stasis pulled image: " + std::string(repository.View());
  return store::OriginKey(HmacSha256(key, label));
}

}  // namespace stasis::repository
