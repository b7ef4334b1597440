// How the contents of a repository are protected: encrypted with a key that the storage does not
// have, or plain with checksums only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/id128.h"
#include "base/result.h"

namespace stasis::repository {

// Seals the units of one new pack. Use it in one thread.
class UnitSealer {
 public:
  virtual ~UnitSealer() = default;
  // A random id, which is needed to open the units.
  virtual const Id128& id() const = 0;
  // Seals the next unit; the first has the number 0. Writes plain.size() + kTagBytes bytes to
  // `sealed`, which begins where `plain` does, or does not overlap it.
  virtual Status Seal(std::string_view plain, char* sealed) = 0;
};

// Opens units of one pack in any order, each in pieces as they arrive. Use it in one thread at a
// time.
class UnitOpener {
 public:
  virtual ~UnitOpener() = default;
  // Begins a unit, and abandons an unfinished one. The unit is opened into `plain`, which has
  // exactly the unit's length.
  virtual Status Begin(uint64_t number, std::span<char> plain) = 0;
  // Opens the next bytes of the sealed unit. The contents of `plain` are undefined until Finish has
  // succeeded.
  virtual Status Add(std::string_view sealed) = 0;
  // Returns kDataLoss if the bytes are not the unit that was sealed under this number.
  virtual Status Finish() = 0;
};

// Safe to use from any thread.
class Sealing {
 public:
  virtual ~Sealing() = default;
  virtual Result<std::unique_ptr<UnitSealer>> NewPack() const = 0;
  virtual Result<std::unique_ptr<UnitOpener>> OpenPack(const Id128& id) const = 0;
  // Seals a whole small object. `purpose` is the object's key in the repository. It is bound to the
  // object, which therefore cannot be opened under another key.
  virtual Result<std::string> SealObject(std::string_view purpose,
                                         std::string_view plain) const = 0;
  // `what` names the object in errors.
  virtual Result<std::string> OpenObject(std::string_view purpose, std::string_view sealed,
                                         const std::string& what) const = 0;
};

// The sealing of repositories without encryption. The tag of a unit is a checksum, which also
// covers the pack's id and the unit's number. It detects damage and mistakes, but not an attack.
std::unique_ptr<Sealing> PlainSealing();

}  // namespace stasis::repository
