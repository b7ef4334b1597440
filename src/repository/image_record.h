// The record of an image in a repository, images/NAME: the image's manifest, and where its units
// are in the repository's packs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "repository/layout.h"
#include "repository/records.h"
#include "store/manifest.h"

namespace stasis::repository {

// Consecutive units of an image that are also consecutive in a pack, or are all zero.
struct StoredRun {
  static constexpr uint32_t kZeros = ~0u;
  uint32_t pack = kZeros;  // index into ImageRecord::packs
  uint32_t first = 0;      // number of the first unit in the pack; 0 for zeros
  uint32_t units = 0;

  bool is_zero() const { return pack == kZeros; }
  bool operator==(const StoredRun&) const = default;
};

struct ImageRecord {
  int64_t pushed_unix_ns = 0;
  // The manifest as it was pushed, but without packs: all runs of ranges and page files are zero
  // units.
  store::Manifest manifest;
  std::vector<PackId> packs;  // every pack that the image needs, each once
  // The runs of each sequence: device ranges, then page files, then files.
  std::vector<std::vector<StoredRun>> sequences;

  void AddTo(References& references) const;
};

// Groups the packs of an image by push. The values are indexes into ImageRecord::packs.
std::map<PushId, std::vector<uint32_t>> PacksByPush(const ImageRecord& record);

// A sequence of units of an image: a device range, a page file or a file. All units have unit_bytes
// bytes, except that the last one may be shorter.
struct Sequence {
  enum class Kind : uint8_t { kRange, kPageFile, kFile };
  Kind kind;
  size_t index;  // in the manifest's list of this kind
  uint64_t size_bytes;
  uint32_t unit_bytes;

  uint64_t units() const { return size_bytes / unit_bytes + (size_bytes % unit_bytes != 0); }
  // Returns the size of one unit in bytes.
  uint32_t UnitBytes(uint64_t unit) const {
    const uint64_t rest = size_bytes - unit * unit_bytes;
    return rest < unit_bytes ? static_cast<uint32_t>(rest) : unit_bytes;
  }
};
// Returns the sequences of a manifest in the order of ImageRecord::sequences.
std::vector<Sequence> SequencesOf(const store::Manifest& manifest);

// Appends units to a list of runs. Joins them with the last run if they follow it.
void AppendRun(std::vector<StoredRun>& runs, const StoredRun& run);

// Removes packs from a manifest and makes all its units zero.
void RemovePlaces(store::Manifest& manifest);

Result<std::string> EncodeImage(const ImageRecord& image);
// Returns kDataLoss if a rule of the format is broken, and the errors of store::DecodeManifest.
Result<ImageRecord> DecodeImage(std::string_view body);

}  // namespace stasis::repository
