// Reads the input as an object of a repository, which is a record with a body. Then corrects the
// envelope and the checksum and reads the record again, so that most inputs reach the decoders of
// bodies. The kind in the envelope selects the decoder.
#include <cstring>
#include <string>

#include "base/checksum.h"
#include "base/fuzz_input.h"
#include "repository/image_record.h"
#include "repository/limits.h"
#include "repository/record.h"
#include "repository/records.h"

namespace stasis::repository {
namespace {

// Independently checks the rules that readers of an accepted table rely on.
void CheckTables(const std::vector<PackTable>& packs) {
  for (const PackTable& pack : packs) {
    FuzzCheck(pack.number() > 0 && pack.number() <= kMaxPushPacks);
    FuzzCheck(pack.units() > 0 && pack.units() <= kMaxPushUnits);
    FuzzCheck(pack.object_bytes() <= kMaxPackBytes);
    uint64_t end = 0;
    for (uint32_t unit = 0; unit < pack.units(); ++unit) {
      const UnitPlace place = pack.Place(unit);
      FuzzCheck(place.offset == end && place.plain_bytes <= kMaxUnitBytes);
      FuzzCheck(place.stored_bytes > 0 && place.stored_bytes <= place.plain_bytes);
      end = place.end();
    }
    FuzzCheck(end == pack.object_bytes());
  }
}

void CheckImage(const ImageRecord& image) {
  const auto sequences = SequencesOf(image.manifest);
  FuzzCheck(sequences.size() == image.sequences.size() && image.manifest.packs.empty());
  for (size_t i = 0; i < sequences.size(); ++i) {
    uint64_t units = 0;
    for (const StoredRun& run : image.sequences[i]) {
      units += run.units;
      FuzzCheck(run.units > 0 && (run.is_zero() || run.pack < image.packs.size()));
    }
    FuzzCheck(units == sequences[i].units());
  }
  // A record that was read can be encoded again, with the same result.
  const auto again = EncodeImage(image);
  FuzzCheck(again.has_value());
  const auto same = DecodeImage(*again);
  FuzzCheck(same.has_value() && *EncodeImage(*same) == *again);
}

void ReadBody(RecordKind kind, std::string_view body) {
  switch (kind) {
    case RecordKind::kRepo:
      if (auto info = DecodeInfo({}, body)) FuzzCheck(EncodeInfo(*info) == body);
      break;
    case RecordKind::kPlace:
      if (auto packs = DecodePlace(body)) CheckTables(*packs);
      break;
    case RecordKind::kNames:
      if (auto names = DecodeNames(body)) {
        CheckTables(names->packs);
        size_t units = 0;
        for (const PackTable& pack : names->packs) units += pack.units();
        FuzzCheck(names->names.size() == units);
      }
      break;
    case RecordKind::kPending:
      if (auto pending = DecodePending(body)) FuzzCheck(EncodePending(*pending) == body);
      break;
    case RecordKind::kImage:
      if (auto image = DecodeImage(body)) CheckImage(*image);
      break;
    case RecordKind::kCondemned:
      if (auto condemned = DecodeCondemned(body)) FuzzCheck(EncodeCondemned(*condemned) == body);
      break;
  }
}

void Read(const std::string& record) {
  const auto decoded = DecodeRecord(record, "fuzz");
  if (!decoded) {
    (void)decoded.error().ToString();
    return;
  }
  FuzzCheck(EncodeRecord(decoded->header, decoded->body).size() == record.size());
  ReadBody(decoded->header.kind, decoded->body);
}

template <class T>
void Write(std::string& to, size_t offset, T value) {
  std::memcpy(&to[offset], &value, sizeof value);
}

}  // namespace
}  // namespace stasis::repository

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::repository;
  std::string record(reinterpret_cast<const char*>(data), size);
  Read(record);
  constexpr size_t kLeast = 48 + stasis::Id128::kBytes;
  if (size < kLeast) return 0;
  record.replace(0, 8, "\x89STREPO\n");
  Write<uint32_t>(record, 8, kFormatVersion);
  Write<uint64_t>(record, 16, 0);
  Write<uint32_t>(record, 40, 0);
  record.resize(size - stasis::Id128::kBytes);
  record += stasis::Checksum(record).View();
  Read(record);
  return 0;
}
