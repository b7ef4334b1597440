#include "repository/unit_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>

#include "repository/limits.h"
#include "store/codec.h"

namespace stasis::repository {

namespace {

// Units that are at most this far apart are fetched together: the bytes between them cost less than
// another request.
constexpr uint64_t kGapBytes = 64 << 10;
constexpr uint64_t kRangeBytes = 16 << 20;

// Divides the bytes of a range into units, and opens them as their bytes arrive.
class UnitSink final : public objects::Sink {
 public:
  UnitSink(const PackTable& table, const FetchRange& range, UnitOpener& opener,
           const UnitReceived& received, const UnitPlaceOf& place_of)
      : table_(table), range_(range), opener_(opener), received_(received), place_of_(place_of) {
    Begin(0);
  }

  Status Write(std::string_view part) override {
    while (!part.empty() && !IsComplete()) {
      const uint64_t at = range_.offset + position_;
      if (at < place_.offset) {
        Advance(part, std::min<uint64_t>(part.size(), place_.offset - at));
        continue;
      }
      if (collected_ == 0) STASIS_TRY(BeginUnit());
      const uint64_t some = std::min<uint64_t>(part.size(), place_.sealed_bytes() - collected_);
      STASIS_TRY(opener_.Add(part.substr(0, some)));
      collected_ += some;
      Advance(part, some);
      if (collected_ < place_.sealed_bytes()) continue;
      STASIS_TRY(FinishUnit());
      Begin(next_ + 1);
    }
    position_ += part.size();
    return {};
  }

  uint64_t Rewind() override {
    position_ -= collected_;
    collected_ = 0;
    return position_;
  }

  bool IsComplete() const { return next_ >= range_.units.size(); }

 private:
  void Begin(size_t next) {
    next_ = next;
    collected_ = 0;
    if (!IsComplete()) place_ = table_.Place(range_.units[next_]);
  }
  void Advance(std::string_view& part, uint64_t bytes) {
    part.remove_prefix(bytes);
    position_ += bytes;
  }
  Status BeginUnit() {
    const uint32_t unit = range_.units[next_];
    stored_ = nullptr;
    if (place_of_ && place_.codec == store::Codec::kNone) stored_ = place_of_(unit);
    if (stored_ == nullptr) {
      if (!buffer_) buffer_ = std::make_unique_for_overwrite<char[]>(kMaxUnitBytes);
      stored_ = buffer_.get();
    }
    return opener_.Begin(unit, {stored_, place_.stored_bytes});
  }
  Status FinishUnit() {
    STASIS_TRY(opener_.Finish());
    std::string_view plain(stored_, place_.stored_bytes);
    if (place_.codec != store::Codec::kNone) {
      if (!plain_) plain_ = std::make_unique_for_overwrite<char[]>(kMaxUnitBytes);
      STASIS_TRY(store::Decompress(place_.codec, plain, plain_.get(), place_.plain_bytes));
      plain = {plain_.get(), place_.plain_bytes};
    }
    return received_(range_.units[next_], plain);
  }

  const PackTable& table_;
  const FetchRange& range_;
  UnitOpener& opener_;
  const UnitReceived& received_;
  const UnitPlaceOf& place_of_;
  char* stored_ = nullptr;          // destination of the current unit's stored bytes
  std::unique_ptr<char[]> buffer_;  // for units without a place, and compressed ones
  std::unique_ptr<char[]> plain_;   // the current unit, decompressed
  uint64_t position_ = 0;           // in the range
  size_t next_ = 0;                 // index of the current unit in range_.units
  UnitPlace place_;                 // of the current unit
  uint64_t collected_ = 0;          // sealed bytes of the current unit so far
};

}  // namespace

std::vector<FetchRange> PlanFetches(const ImagePlaces& places,
                                    const std::vector<StoredUnit>& units) {
  std::vector<FetchRange> ranges;
  for (const StoredUnit& unit : units) {
    const UnitPlace place = places.table(unit.pack).Place(unit.unit);
    FetchRange* last = ranges.empty() ? nullptr : &ranges.back();
    const bool joins = last != nullptr && last->pack == unit.pack &&
                       place.offset <= last->offset + last->bytes + kGapBytes &&
                       place.end() - last->offset <= kRangeBytes;
    if (!joins) {
      ranges.push_back({unit.pack, place.offset, 0, 0, {}});
      last = &ranges.back();
    }
    last->bytes = place.end() - last->offset;
    last->plain_bytes += place.plain_bytes;
    last->units.push_back(unit.unit);
  }
  return ranges;
}

Status FetchUnits(const Repository& repository, const ImagePlaces& places, const FetchRange& range,
                  const UnitReceived& received, const objects::CallOptions& call,
                  const UnitPlaceOf& place_of) {
  const PackTable& table = places.table(range.pack);
  const std::string key = PackKey(places.id(range.pack));
  STASIS_ASSIGN(const auto opener, repository.sealing().OpenPack(table.seal_id()));
  UnitSink sink(table, range, *opener, received, place_of);
  auto status = repository.store().Get(key, range.offset, range.bytes, sink, call);
  if (status && !sink.IsComplete()) {
    status = Fail(Code::kDataLoss, Domain::kImage, 0, "the store sent too few bytes");
  }
  if (status) return {};
  Error& error = status.error();
  if (error.code == Code::kNotFound || error.code == Code::kOutOfRange) {
    const bool is_missing = error.code == Code::kNotFound;
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                fmt::format("{} {}", repository.NameOf(key),
                            is_missing ? "is missing" : "is shorter than its index says"));
  }
  return Fail(std::move(error).WithContext("fetch " + repository.NameOf(key)));
}

}  // namespace stasis::repository
