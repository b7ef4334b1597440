// The envelope of small objects: `repo`, indexes, pending, condemned and image records. Numbers are
// little-endian.
//
//   offset   bytes
//   0        8    magic: 89 'S' 'T' 'R' 'E' 'P' 'O' 0A
//   8        4    format version
//   12       4    kind
//   16       8    features that a reader must support: none so far
//   24       16   id of the repository
//   40       4    length k of the object's key
//   44       4    zeros
//   48       k    the object's key
//   48+k     n    the body
//   end-16   16   XXH3-128 of all the bytes before it
//
// A record is sealed as a whole (sealing.h), except `repo`, which is always readable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/id128.h"
#include "base/result.h"

namespace stasis::repository {

enum class RecordKind : uint32_t {
  kRepo = 0,
  kPlace = 1,
  kNames = 2,
  kPending = 3,
  kImage = 4,
  kCondemned = 5,
};

struct RecordHeader {
  RecordKind kind;
  Id128 repository;
  std::string key;
};

std::string EncodeRecord(const RecordHeader& header, std::string_view body);

struct DecodedRecord {
  RecordHeader header;
  std::string_view body;
};
// Returns the header and a view of the body in `record`. `what` names the object in errors:
//   kDataLoss       the record is damaged
//   kUnimplemented  it is intact, but this Stasis does not support its version or features
Result<DecodedRecord> DecodeRecord(std::string_view record, const std::string& what);

// Returns the error for a record that breaks a rule of the format.
tl::unexpected<Error> BadRecord(const std::string& how);

// Reads numbers and byte strings from the front of a body. Every method returns kDataLoss if the
// body is too short.
class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : rest_(body) {}
  template <class T>
  Result<T> Number() {
    STASIS_ASSIGN(const std::string_view bytes, Bytes(sizeof(T)));
    T value;
    std::char_traits<char>::copy(reinterpret_cast<char*>(&value), bytes.data(), sizeof value);
    return value;
  }
  Result<std::string_view> Bytes(uint64_t count);
  // Reads the number of entries of `entry_bytes` each that follow. Returns kDataLoss if there are
  // more than `most`, or more than the rest of the body can hold. `what` names them in errors.
  Result<uint32_t> Count(uint64_t most, uint64_t entry_bytes, const char* what);
  // Returns kDataLoss unless everything was read.
  Status End() const;

 private:
  std::string_view rest_;
};

}  // namespace stasis::repository
