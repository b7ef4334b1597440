#include "store/image_reference.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/json_bytes.h"
#include "store/beneath.h"
#include "store/image_reader.h"
#include "store/limits.h"

namespace stasis::store {
namespace {

constexpr int kFormat = 1;
constexpr size_t kMaxBytes = 64 << 10;

struct Recorded {
  std::string image;
  std::string image_id;
};

tl::unexpected<Error> Damaged(const std::string& folder) {
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("{}/{} is damaged", folder, kReferenceName));
}

Result<Recorded> ReadReference(const std::string& folder) {
  STASIS_ASSIGN(UniqueFd folder_fd, OpenFolder(folder));
  STASIS_ASSIGN(const OpenedFile file, OpenRegular(folder_fd.get(), kReferenceName));
  if (file.size_bytes > kMaxBytes) return Damaged(folder);
  std::string text(file.size_bytes, '\0');
  STASIS_TRY(PreadAll(file.fd.get(), text.data(), text.size(), 0));
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return Damaged(folder);
  if (document.value("format", nlohmann::json()) != kFormat) {
    return Fail(
        Code::kUnimplemented, Domain::kImage, 0,
        fmt::format("{}/{} has a format that this Stasis does not support", folder, kReferenceName),
        "use the version of Stasis that made the checkpoint, or a later one");
  }
  Recorded recorded;
  auto take = [&](const char* member, std::string& to) {
    auto found = document.find(member);
    auto bytes = found == document.end() ? std::nullopt : DecodeBytes(*found);
    if (bytes) to = std::move(*bytes);
  };
  take("image", recorded.image);
  take("image_id", recorded.image_id);
  const bool whole = recorded.image.starts_with('/') && recorded.image.size() <= kMaxPathBytes &&
                     recorded.image.find('\0') == recorded.image.npos &&
                     recorded.image_id.size() == 2 * Id128::kBytes;
  if (!whole) return Damaged(folder);
  return recorded;
}

bool IsImage(const std::string& path, const std::string& image_id) {
  auto reader = ImageReader::Open(path, ImageReader::Deletion::kAllowed);
  return reader && (*reader)->manifest().image_id.Hex() == image_id;
}

}  // namespace

Status WriteReference(const std::string& folder, const ImageReference& reference) {
  const nlohmann::json document = {
      {"format", kFormat},
      {"image", EncodeBytes(reference.image)},
      {"image_id", reference.image_id.Hex()},
  };
  STASIS_TRY(MakeDirs(folder));
  return WriteFileDurably(folder + "/" + kReferenceName, document.dump(1) + "\n");
}

Result<std::string> FollowReference(const std::string& folder, const std::string& store) {
  if (!PathExists(folder + "/" + kReferenceName)) return folder;
  STASIS_ASSIGN(const Recorded recorded, ReadReference(folder));
  const std::string name = recorded.image.substr(recorded.image.rfind('/') + 1);
  for (const std::string& path : {recorded.image, store + "/" + name}) {
    if (!name.empty() && IsImage(path, recorded.image_id)) return path;
  }
  // Reports damage of the image at the recorded path, if there is any.
  auto reader = ImageReader::Open(recorded.image, ImageReader::Deletion::kAllowed);
  if (!reader && reader.error().code != Code::kNotFound) return Fail(std::move(reader).error());
  return Fail(
      Code::kNotFound, Domain::kImage, 0,
      fmt::format("the GPU data of this checkpoint is the image {} with the id {}, which is "
                  "neither there nor in {}",
                  recorded.image, recorded.image_id, store),
      fmt::format("copy that image to {}/{}", store, name));
}

}  // namespace stasis::store
