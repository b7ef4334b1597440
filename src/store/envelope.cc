#include "store/envelope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "store/limits.h"

namespace stasis::store {

namespace {

constexpr std::string_view kMagic = "\x89STASIS\n";

tl::unexpected<Error> Damaged(const std::string& what, const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("{}: {} is damaged: {}", what, kManifestName, how), kOtherCopyHint);
}

}  // namespace

std::string SealEnvelope(std::string_view body, uint64_t features, const OriginKey* origin) {
  if (origin != nullptr) features |= kFeatureOrigin;
  std::string file(kMagic);
  AppendNumber<uint32_t>(file, kFormatVersion);
  AppendNumber<uint32_t>(file, kEnvelopeHeaderBytes);
  AppendNumber<uint64_t>(file, body.size());
  AppendNumber<uint64_t>(file, features);
  file += body;
  if (origin != nullptr) {
    const OriginMac mac = origin->Sign(Sha256(file));
    file += mac.key_id.View();
    file += View(mac.mac);
  }
  file += Checksum(file).View();
  return file;
}

Result<std::string_view> OpenEnvelope(std::string_view file, const std::string& what) {
  if (file.size() < kEnvelopeBytes) {
    return Damaged(what, fmt::format("it has {} bytes, but even an empty manifest has {}",
                                     file.size(), kEnvelopeBytes));
  }
  if (file.substr(0, kMagic.size()) != kMagic) {
    return Damaged(what, "its first bytes are not those of a manifest");
  }
  // Check the checksum before the version, so that a damaged version number does not suggest a
  // newer Stasis.
  std::string_view sealed = file.substr(0, file.size() - Id128::kBytes);
  Id128 expected = Id128::FromRaw(file.data() + sealed.size());
  Id128 found = Checksum(sealed);
  if (expected != found) {
    return Damaged(what, fmt::format("the checksum of its {} bytes is {} instead of {}",
                                     sealed.size(), found.Hex(), expected.Hex()));
  }
  auto version = NumberAt<uint32_t>(file, 8);
  if (version != kFormatVersion) {
    return Fail(Code::kUnimplemented, Domain::kImage, version,
                fmt::format("image {} has format {}; this Stasis reads format {}", what, version,
                            kFormatVersion),
                version > kFormatVersion ? "Use a newer Stasis." : "");
  }
  auto features = NumberAt<uint64_t>(file, 24);
  if (uint64_t unknown = features & ~kKnownFeatures; unknown != 0) {
    return Fail(Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(unknown),
                fmt::format("image {} uses features ({:#x}) that this Stasis does not support",
                            what, unknown),
                "Use a newer Stasis.");
  }
  auto header_bytes = NumberAt<uint32_t>(file, 12);
  auto body_bytes = NumberAt<uint64_t>(file, 16);
  const size_t around = kEnvelopeBytes + ((features & kFeatureOrigin) != 0 ? kOriginBytes : 0);
  const size_t room = file.size() - std::min(around, file.size());
  if (header_bytes != kEnvelopeHeaderBytes || body_bytes != room || file.size() < around) {
    return Damaged(what, fmt::format("its header of {} bytes announces a body of {} bytes, but the "
                                     "file has room for {}",
                                     header_bytes, body_bytes, room));
  }
  return file.substr(kEnvelopeHeaderBytes, body_bytes);
}

std::optional<OriginOfFile> ReadOrigin(std::string_view file) {
  if ((NumberAt<uint64_t>(file, 24) & kFeatureOrigin) == 0) return std::nullopt;
  const std::string_view covered = file.substr(0, file.size() - Id128::kBytes - kOriginBytes);
  OriginOfFile origin;
  origin.mac.key_id = Id128::FromRaw(file.data() + covered.size());
  std::memcpy(origin.mac.mac.data(), file.data() + covered.size() + Id128::kBytes,
              origin.mac.mac.size());
  origin.digest = Sha256(covered);
  return origin;
}

}  // namespace stasis::store
