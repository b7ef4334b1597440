#include "coordinator/block_key.h"

#include <fmt/format.h>

#include <cstring>

#include "base/file.h"

namespace stasis::coordinator {

Result<image::BlockSecret> BlockSecretOf(const Paths& paths) {
  const std::string path = paths.data + "/block.key";
  image::BlockSecret secret;
  auto text = ReadFile(path, 4096);
  if (!text && text.error().code == Code::kNotFound) {
    STASIS_ASSIGN(secret, image::BlockKey::RandomSecret());
    std::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
    STASIS_TRY(WriteNewFileDurably(path, bytes));
    // Somebody may have been at it too: who was first has made the key, for good.
    text = ReadFile(path, 4096);
  }
  if (!text) return Fail(std::move(text).error());
  if (text->size() != secret.size()) {
    return Fail(Code::kDataLoss,
                fmt::format("{} has {} bytes; a key has {}", path, text->size(), secret.size()),
                "remove it: a new one is made, and images stay as they are");
  }
  std::memcpy(secret.data(), text->data(), secret.size());
  return secret;
}

}  // namespace stasis::coordinator
