// The keys of a repository's objects. docs/format/repository.md has the table.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::repository {

// Identifies the packs and indexes that one push wrote: 12 random bytes, 24 digits in keys.
struct PushId {
  static constexpr size_t kBytes = 12;
  std::array<uint8_t, kBytes> bytes{};

  auto operator<=>(const PushId&) const = default;
  std::string Hex() const;
  std::string_view View() const { return {reinterpret_cast<const char*>(bytes.data()), kBytes}; }
  // `raw` must hold 12 bytes at least.
  static PushId FromRaw(const void* raw) {
    PushId id;
    std::memcpy(id.bytes.data(), raw, kBytes);
    return id;
  }
  static std::optional<PushId> FromHex(std::string_view hex);
  // Returns a new id from the kernel's random numbers.
  static Result<PushId> Random();
};

// Identifies the record of one gc.
using GcId = PushId;

// A pack of a push.
struct PackId {
  PushId push;
  uint32_t number = 0;  // from 1

  auto operator<=>(const PackId&) const = default;
  // The encoding in records: the push's id, then the pack's number, little-endian.
  static constexpr size_t kBytes = PushId::kBytes + sizeof(uint32_t);
  std::string ToBytes() const;
  static PackId FromRaw(const void* raw);  // kBytes
};

inline constexpr char kRepoKey[] = "repo";
inline constexpr char kPacksPrefix[] = "packs/";
inline constexpr char kIndexPrefix[] = "index/";
inline constexpr char kPendingPrefix[] = "pending/";
inline constexpr char kImagesPrefix[] = "images/";
inline constexpr char kCondemnedPrefix[] = "condemned/";

std::string PackKey(const PackId& pack);        // packs/PUSH/N
std::string PlaceKey(const PushId& push);       // index/PUSH.place
std::string NamesKey(const PushId& push);       // index/PUSH.names
std::string PendingKey(const PushId& push);     // pending/PUSH
std::string CondemnedKey(const GcId& gc);       // condemned/GC
std::string ImageKey(const std::string& name);  // images/NAME

// Parse keys. Return nullopt for keys that no Stasis of this version writes.
std::optional<PackId> ParsePackKey(std::string_view key);
struct IndexKey {
  PushId push;
  bool is_names = false;
};
std::optional<IndexKey> ParseIndexKey(std::string_view key);
std::optional<PushId> ParsePendingKey(std::string_view key);
std::optional<GcId> ParseCondemnedKey(std::string_view key);
std::optional<std::string> ParseImageKey(std::string_view key);

}  // namespace stasis::repository
