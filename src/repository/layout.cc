#include "repository/layout.h"

#include <charconv>

#include "base/hex.h"
#include "base/id128.h"
#include "base/little_endian.h"
#include "repository/limits.h"
#include "store/image_folder.h"

namespace stasis::repository {

namespace {

constexpr std::string_view kPlaceSuffix = ".place";
constexpr std::string_view kNamesSuffix = ".names";

// Removes `prefix` from the front of `text`. Returns false if it is not there.
bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool TakeSuffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

}  // namespace

std::string PushId::Hex() const { return HexOfBytes(View()); }

std::optional<PushId> PushId::FromHex(std::string_view hex) {
  if (hex.size() != 2 * kBytes) return std::nullopt;
  const std::string bytes = BytesOfHex(hex);
  if (bytes.size() != kBytes) return std::nullopt;
  const PushId id = FromRaw(bytes.data());
  if (id.Hex() != hex) return std::nullopt;  // upper-case digits
  return id;
}

Result<PushId> PushId::Random() {
  STASIS_ASSIGN(const Id128 random, Id128::Random());
  return FromRaw(random.bytes.data());
}

std::string PackId::ToBytes() const {
  std::string bytes(push.View());
  AppendNumber(bytes, number);
  return bytes;
}

PackId PackId::FromRaw(const void* raw) {
  PackId pack;
  pack.push = PushId::FromRaw(raw);
  std::memcpy(&pack.number, static_cast<const char*>(raw) + PushId::kBytes, sizeof pack.number);
  return pack;
}

std::string PackKey(const PackId& pack) {
  return kPacksPrefix + pack.push.Hex() + "/" + std::to_string(pack.number);
}
std::string PlaceKey(const PushId& push) {
  return kIndexPrefix + push.Hex() + std::string(kPlaceSuffix);
}
std::string NamesKey(const PushId& push) {
  return kIndexPrefix + push.Hex() + std::string(kNamesSuffix);
}
std::string PendingKey(const PushId& push) { return kPendingPrefix + push.Hex(); }
std::string CondemnedKey(const GcId& gc) { return kCondemnedPrefix + gc.Hex(); }
std::string ImageKey(const std::string& name) { return kImagesPrefix + name; }

std::optional<PackId> ParsePackKey(std::string_view key) {
  if (!TakePrefix(key, kPacksPrefix)) return std::nullopt;
  const size_t slash = key.find('/');
  if (slash == key.npos) return std::nullopt;
  const auto push = PushId::FromHex(key.substr(0, slash));
  const std::string_view number = key.substr(slash + 1);
  PackId pack;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), pack.number);
  if (!push || error != std::errc() || pack.number == 0 || pack.number > kMaxPushPacks ||
      std::to_string(pack.number) != number) {
    return std::nullopt;
  }
  pack.push = *push;
  return pack;
}

std::optional<IndexKey> ParseIndexKey(std::string_view key) {
  if (!TakePrefix(key, kIndexPrefix)) return std::nullopt;
  const bool is_names = TakeSuffix(key, kNamesSuffix);
  if (!is_names && !TakeSuffix(key, kPlaceSuffix)) return std::nullopt;
  const auto push = PushId::FromHex(key);
  if (!push) return std::nullopt;
  return IndexKey{*push, is_names};
}

std::optional<PushId> ParsePendingKey(std::string_view key) {
  if (!TakePrefix(key, kPendingPrefix)) return std::nullopt;
  return PushId::FromHex(key);
}

std::optional<GcId> ParseCondemnedKey(std::string_view key) {
  if (!TakePrefix(key, kCondemnedPrefix)) return std::nullopt;
  return PushId::FromHex(key);
}

std::optional<std::string> ParseImageKey(std::string_view key) {
  if (!TakePrefix(key, kImagesPrefix)) return std::nullopt;
  std::string name(key);
  if (!store::CheckImageName(name)) return std::nullopt;
  return name;
}

}  // namespace stasis::repository
