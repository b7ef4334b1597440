#include "api/local_images.h"

#include "api/usage_error.h"
#include "repository/pulled_origin.h"
#include "store/image_report.h"
#include "store/origin.h"
#include "store/store_folder.h"

namespace stasis::api {

Result<std::string> StoreOf(const Call& call, const std::string& asked) {
  STASIS_TRY(CheckAbsolute("the store", asked));
  return asked.empty() ? call.paths.images() : asked;
}

Result<std::string> ImagePath(const Call& call, const std::string& store,
                              const std::string& image) {
  if (image.find('/') != image.npos) STASIS_TRY(CheckAbsolute("the image", image));
  STASIS_ASSIGN(const std::string folder, StoreOf(call, store));
  return store::ResolveImage({folder}, image);
}

v1::Origin OriginOf(const Call& call, const store::ImageReader& image) {
  const auto key = store::FindOriginKey(call.paths).value_or(std::nullopt);
  v1::Origin origin;
  origin.set_by(store::OriginName(image.OriginBy(key ? &*key : nullptr)));
  if (const auto id = image.origin_key_id()) origin.set_key(id->Hex());
  const auto known = repository::PulledOrigins(call.paths);
  if (!known) return origin;
  for (const repository::KnownOrigin& pulled : *known) {
    if (image.OriginBy(&pulled.key) != store::Origin::kOwn) continue;
    origin.set_by("pulled");
    origin.set_repository(pulled.repository);
  }
  return origin;
}

}  // namespace stasis::api
