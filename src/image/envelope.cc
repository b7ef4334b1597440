#include "image/envelope.h"

#include <fmt/format.h>

#include "image/checksum.h"
#include "image/limits.h"
#include "image/little_endian.h"

namespace stasis::image {

namespace {

constexpr std::string_view kMagic = "\x89STASIS\n";

tl::unexpected<Error> Damaged(const std::string& what, const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("{}: {} is damaged: {}", what, kManifestName, how),
              "Take another copy of the image, or an older checkpoint.");
}

}  // namespace

std::string SealEnvelope(std::string_view body, uint64_t features) {
  std::string file(kMagic);
  AppendNumber<uint32_t>(file, kFormatVersion);
  AppendNumber<uint32_t>(file, kEnvelopeHeaderBytes);
  AppendNumber<uint64_t>(file, body.size());
  AppendNumber<uint64_t>(file, features);
  file += body;
  file += Checksum(file).View();
  return file;
}

Result<std::string_view> OpenEnvelope(std::string_view file, const std::string& what) {
  if (file.size() < kEnvelopeBytes) {
    return Damaged(what, fmt::format("it has {} bytes, fewer than the {} of an empty one",
                                     file.size(), kEnvelopeBytes));
  }
  if (file.substr(0, kMagic.size()) != kMagic) {
    return Damaged(what, "it does not begin as a manifest does");
  }
  // The checksum before the version: a damaged version number must not send anybody looking for a
  // newer Stasis.
  std::string_view sealed = file.substr(0, file.size() - Id128::kBytes);
  Id128 expected = Id128::FromRaw(file.data() + sealed.size());
  Id128 found = Checksum(sealed);
  if (expected != found) {
    return Damaged(what, fmt::format("its {} bytes have checksum {}, recorded is {}", sealed.size(),
                                     found.Hex(), expected.Hex()));
  }
  auto version = NumberAt<uint32_t>(file, 8);
  if (version < kOldestFormatVersion || version > kFormatVersion) {
    return Fail(Code::kUnimplemented, Domain::kImage, version,
                fmt::format("image {} has format {}; this Stasis reads {} to {}", what, version,
                            kOldestFormatVersion, kFormatVersion),
                version > kFormatVersion ? "Use a newer Stasis." : "Use an older Stasis.");
  }
  auto features = NumberAt<uint64_t>(file, 24);
  if (uint64_t unknown = features & ~kKnownFeatures; unknown != 0) {
    return Fail(
        Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(unknown),
        fmt::format("image {} uses features ({:#x}) that this Stasis does not know", what, unknown),
        "Use a newer Stasis.");
  }
  auto header_bytes = NumberAt<uint32_t>(file, 12);
  auto body_bytes = NumberAt<uint64_t>(file, 16);
  if (header_bytes != kEnvelopeHeaderBytes || body_bytes != file.size() - kEnvelopeBytes) {
    return Damaged(what, fmt::format("its header of {} bytes announces a body of {} bytes, the "
                                     "file has room for {}",
                                     header_bytes, body_bytes, file.size() - kEnvelopeBytes));
  }
  return file.substr(kEnvelopeHeaderBytes, body_bytes);
}

}  // namespace stasis::image
