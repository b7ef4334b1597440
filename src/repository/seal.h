// Encrypts data for a repository, and decrypts and verifies data that is read from it: AES-256-GCM
// (NIST SP 800-38D) by OpenSSL, with 16 bytes of tag.
//
// A pack is sealed unit by unit. Each pack has its own key (master_key.h), so a nonce must be
// unique within a pack only: it is the unit's number.
//
//   nonce               4 zero bytes, the unit's number as a 64-bit little-endian number
//   associated data     "stasis unit 1", the pack's id, the length of the unit (64 bits)
//   sealed unit         the encrypted bytes, then the tag
//
// A small object (manifest, index of names) has a header, which is authenticated but not encrypted,
// and its own key. That key is used once, with a nonce of zeros.
//
//   offset  bytes
//        0      8   "stsl", then the format version as a 32-bit number: 1
//        8     16   id of the master key
//       24     16   id of the object, random
//       40      8   length of the plain text
//       48      n   the encrypted bytes
//     48+n     16   the tag
//
//   associated data     the header, then the object's purpose
//
// The key must never encrypt two texts with one nonce, because that reveals both texts and lets
// anybody forge more. Therefore PackSealer makes the pack's id and the numbers itself, cannot be
// copied, and cannot continue a pack that another PackSealer began.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/id128.h"
#include "base/result.h"
#include "repository/master_key.h"

namespace stasis::repository {

inline constexpr size_t kSealTagBytes = 16;
inline constexpr size_t kSealHeaderBytes = 48;
// The maximum length of a unit or object.
inline constexpr uint64_t kMaxSealedBytes = 1ull << 30;

// Returns the length of a sealed unit.
constexpr uint64_t SealedUnitBytes(uint64_t plain_bytes) { return plain_bytes + kSealTagBytes; }
// Returns the length of a sealed object.
constexpr uint64_t SealedObjectBytes(uint64_t plain_bytes) {
  return kSealHeaderBytes + plain_bytes + kSealTagBytes;
}

class Gcm;

// Seals the units of one new pack. Use it in one thread and in one process: a forked child must not
// use a sealer of its parent.
class PackSealer {
 public:
  // Chooses a random id for the pack.
  static Result<PackSealer> Create(const MasterKey& master);
  PackSealer(PackSealer&&) noexcept;
  PackSealer& operator=(PackSealer&&) = delete;
  ~PackSealer();

  const Id128& pack() const { return pack_; }
  // Returns the number that the next unit gets.
  uint64_t next() const { return next_; }

  // Seals one unit of 1 byte to kMaxSealedBytes, and returns its number: 0, 1, 2 and so on. Writes
  // SealedUnitBytes(plain.size()) bytes to `sealed`, which begins where `plain` does (in place), or
  // does not overlap it. A number is used up even if this fails.
  Result<uint64_t> Seal(std::string_view plain, char* sealed);

  // Seals one unit in pieces. Call Begin, then Add until all bytes of the unit have been passed,
  // then Finish. Begin returns the number, and abandons an unfinished unit.
  Result<uint64_t> Begin(uint64_t plain_bytes);
  Status Add(std::string_view plain, char* sealed);
  Status Finish(char* tag);

 private:
  PackSealer(const Id128& pack, std::unique_ptr<Gcm> gcm);

  Id128 pack_;
  std::unique_ptr<Gcm> gcm_;
  uint64_t next_ = 0;
  uint64_t missing_bytes_ = 0;  // of the current unit
  bool begun_ = false;
};

// Opens units of one pack, in any order. Not safe to use from two threads at once; each thread
// makes its own.
class PackOpener {
 public:
  static Result<PackOpener> Create(const MasterKey& master, const Id128& pack);

  // Opens one unit into `plain`, which has exactly the unit's length. `sealed` may begin where
  // `plain` does. Returns kDataLoss if the unit is not the one that was sealed; `plain` is then
  // zero.
  Status Open(uint64_t number, std::string_view sealed, std::span<char> plain);

  // Opens one unit in pieces, from a receive buffer. Call Begin, then Add until missing() is 0,
  // then Finish. Add writes to `plain`, whose contents are undefined until Finish has succeeded.
  // For a retry, call Begin again: it abandons an unfinished unit.
  Status Begin(uint64_t number, std::span<char> plain);
  // Returns how many sealed bytes of the unit have not been passed yet.
  uint64_t missing() const;
  // Decrypts the next sealed bytes, at most missing(). The pieces may be of any length.
  Status Add(std::string_view sealed);
  // Verifies the unit. If it was changed or replaced, or if bytes are missing, returns kDataLoss
  // and clears `plain`.
  Status Finish();

  PackOpener(PackOpener&&) noexcept;
  PackOpener& operator=(PackOpener&&) = delete;
  ~PackOpener();

 private:
  PackOpener(const Id128& pack, std::unique_ptr<Gcm> gcm);
  tl::unexpected<Error> Refuse(const std::string& why);

  Id128 pack_;
  std::unique_ptr<Gcm> gcm_;
  uint64_t number_ = 0;
  std::span<char> plain_;  // of the unfinished unit
  uint64_t taken_ = 0;     // sealed bytes of that unit
  bool begun_ = false;
  std::array<char, kSealTagBytes> tag_{};
};

// Seals a small object under a new random id. `purpose` is bound to the object: one that was sealed
// as "manifest of a" cannot be opened as "manifest of b", wherever a server puts it.
Result<std::string> SealObject(const MasterKey& master, std::string_view purpose,
                               std::string_view plain);

// Opens an object. `what` names it in messages. Returns
//   kPermissionDenied  it was sealed with another master key; the message has the ids of both
//   kUnimplemented     its format is of a later version
//   kDataLoss          it is not a sealed object, is too short or too long, or was changed, or has
//                      another purpose
Result<std::string> OpenObject(const MasterKey& master, std::string_view purpose,
                               std::string_view sealed, const std::string& what);

// Seals a text that is the same in every Stasis. A repository keeps the result, so that a wrong key
// is reported before anything else is done.
Result<std::string> SealKnownText(const MasterKey& master);
// Returns the errors of OpenObject.
Status CheckKnownText(const MasterKey& master, std::string_view sealed, const std::string& what);

}  // namespace stasis::repository
