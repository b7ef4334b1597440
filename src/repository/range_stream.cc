#include "repository/range_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <stop_token>
#include <tuple>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "repository/unit_fetch.h"

namespace stasis::repository {
namespace {

using store::UnitJobs;

constexpr unsigned kStreamThreads = 8;  // in addition to one per processor, because threads wait
constexpr uint64_t kMostAtOnce = uint64_t{64} << 20;  // bytes of one job that needs no request

// A stored unit, and a place in an output where it belongs.
struct WantedUnit {
  StoredUnit stored;
  UnitJobs::Place to;
  uint32_t bytes = 0;

  bool operator<(const WantedUnit& other) const {
    return std::tie(stored, to.output, to.at) <
           std::tie(other.stored, other.to.output, other.to.at);
  }
};

// A request, or bytes that need no request.
struct StreamJob {
  enum class Kind : uint8_t { kFetch, kZeros, kPresent };
  Kind kind;
  UnitJobs::Place first;  // the first place that it fills; jobs are sorted by it
  uint64_t bytes = 0;     // of zeros, or of bytes that are present
  const FetchRange* range = nullptr;
};

constexpr uint32_t kUnknownPack = StoredRun::kZeros - 1;

// Returns the units of a sequence, one by one. Zero units have the pack kZeros.
std::vector<StoredUnit> UnitsOf(const std::vector<StoredRun>& runs) {
  std::vector<StoredUnit> units;
  for (const StoredRun& run : runs) {
    for (uint32_t i = 0; i < run.units; ++i) {
      units.push_back({run.pack, run.is_zero() ? 0 : run.first + i});
    }
  }
  return units;
}

// The units of an earlier image, to be compared with those of this one.
class EarlierUnits {
 public:
  EarlierUnits(const ImageRecord& earlier, const ImageRecord& now)
      : earlier_(earlier), now_(now), pack_now_(earlier.packs.size(), kUnknownPack) {
    std::map<PackId, uint32_t> packs;
    for (uint32_t i = 0; i < now.packs.size(); ++i) packs.emplace(now.packs[i], i);
    for (size_t i = 0; i < earlier.packs.size(); ++i) {
      if (auto found = packs.find(earlier.packs[i]); found != packs.end()) {
        pack_now_[i] = found->second;
      }
    }
  }

  // Returns the units of a range of the earlier image, with the pack numbers of this image. Returns
  // nothing if that range and `now` differ in more than their units.
  std::vector<StoredUnit> Of(size_t earlier, size_t now) const {
    const auto& ranges = earlier_.manifest.ranges;
    if (earlier >= ranges.size() || !IsSameRange(ranges[earlier], now_.manifest.ranges[now])) {
      return {};
    }
    std::vector<StoredUnit> units = UnitsOf(earlier_.sequences[earlier]);
    for (StoredUnit& unit : units) {
      if (unit.pack != StoredRun::kZeros) unit.pack = pack_now_[unit.pack];
    }
    return units;
  }

 private:
  // GPUs are compared by their UUIDs, because their numbers in the images may differ.
  bool IsSameRange(const store::DeviceRange& a, const store::DeviceRange& b) const {
    return a.pid == b.pid && a.address == b.address && a.size_bytes == b.size_bytes &&
           a.block_bytes == b.block_bytes &&
           earlier_.manifest.gpus[a.gpu].uuid == now_.manifest.gpus[b.gpu].uuid;
  }

  const ImageRecord& earlier_;
  const ImageRecord& now_;
  std::vector<uint32_t> pack_now_;  // by the packs of the earlier image
};

class RangeReader {
 public:
  RangeReader(const Repository& repository, const ImagePlaces& places,
              std::span<const store::RangeOutput> outputs, const UnitJobs::Placed& placed)
      : repository_(repository), places_(places), outputs_(outputs), placed_(placed) {}

  // Adds a range of the image. `present` has the units whose bytes are already in the output.
  void Add(uint32_t output, const Sequence& sequence, const std::vector<StoredRun>& runs,
           const std::vector<StoredUnit>& present);
  Status Run(const std::function<bool()>& go_on);

 private:
  std::span<const WantedUnit> PlacesOf(const StoredUnit& unit) const {
    const auto [first, last] = std::equal_range(
        wanted_.begin(), wanted_.end(), WantedUnit{unit, {}, 0},
        [](const WantedUnit& a, const WantedUnit& b) { return a.stored < b.stored; });
    return {first, last};
  }
  char* At(const UnitJobs::Place& place) const { return outputs_[place.output].data + place.at; }
  void AddWithoutRequest(StreamJob::Kind kind, const UnitJobs::Place& place, uint64_t bytes);
  void Plan();
  Status RunJob(const StreamJob& job);

  const Repository& repository_;
  const ImagePlaces& places_;
  const std::span<const store::RangeOutput> outputs_;
  const UnitJobs::Placed& placed_;
  std::vector<WantedUnit> wanted_;  // sorted by Plan
  std::vector<FetchRange> ranges_;
  std::vector<StreamJob> jobs_;
  std::stop_source stop_;
  const objects::CallOptions call_{Deadline(), stop_.get_token()};
  std::atomic<uint64_t> done_{0};
};

// Adds bytes that need no request. Extends the last StreamJob if it ends where these bytes begin,
// and adds a new one otherwise.
void RangeReader::AddWithoutRequest(StreamJob::Kind kind, const UnitJobs::Place& place,
                                    uint64_t bytes) {
  if (!jobs_.empty()) {
    StreamJob& last = jobs_.back();
    if (last.kind == kind && last.first.output == place.output &&
        last.first.at + last.bytes == place.at && last.bytes + bytes <= kMostAtOnce) {
      last.bytes += bytes;
      return;
    }
  }
  jobs_.push_back({kind, place, bytes});
}

void RangeReader::Add(uint32_t output, const Sequence& sequence, const std::vector<StoredRun>& runs,
                      const std::vector<StoredUnit>& present) {
  const std::vector<StoredUnit> units = UnitsOf(runs);
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitJobs::Place place{output, i * sequence.unit_bytes};
    const uint32_t bytes = sequence.UnitBytes(i);
    if (i < present.size() && present[i] == units[i]) {
      AddWithoutRequest(StreamJob::Kind::kPresent, place, bytes);
    } else if (units[i].pack == StoredRun::kZeros) {
      AddWithoutRequest(StreamJob::Kind::kZeros, place, bytes);
    } else {
      wanted_.push_back({units[i], place, bytes});
    }
  }
}

void RangeReader::Plan() {
  std::sort(wanted_.begin(), wanted_.end());
  std::vector<StoredUnit> units;
  for (const WantedUnit& one : wanted_) {
    if (units.empty() || units.back() != one.stored) units.push_back(one.stored);
  }
  ranges_ = PlanFetches(places_, units);
  for (const FetchRange& range : ranges_) {
    const UnitJobs::Place first = PlacesOf({range.pack, range.units.front()}).front().to;
    jobs_.push_back({StreamJob::Kind::kFetch, first, 0, &range});
  }
  // The arenas are filled from their beginnings, because the loads to the GPU, which run at the
  // same time, begin there.
  std::sort(jobs_.begin(), jobs_.end(), [](const StreamJob& a, const StreamJob& b) {
    return std::tie(a.first.output, a.first.at) < std::tie(b.first.output, b.first.at);
  });
}

Status RangeReader::RunJob(const StreamJob& job) {
  if (job.kind != StreamJob::Kind::kFetch) {
    if (job.kind == StreamJob::Kind::kZeros) std::memset(At(job.first), 0, job.bytes);
    return placed_(job.first, job.bytes);
  }
  const FetchRange& range = *job.range;
  const auto place_of = [&](uint32_t unit) { return At(PlacesOf({range.pack, unit}).front().to); };
  const auto received = [&](uint32_t unit, std::string_view plain) -> Status {
    for (const WantedUnit& one : PlacesOf({range.pack, unit})) {
      char* const at = At(one.to);
      if (at != plain.data()) std::memcpy(at, plain.data(), plain.size());
      STASIS_TRY(placed_(one.to, plain.size()));
    }
    return {};
  };
  return FetchUnits(repository_, places_, range, received, call_, place_of);
}

Status RangeReader::Run(const std::function<bool()>& go_on) {
  Plan();
  const auto progress = [&](uint64_t, uint64_t) {
    if (go_on()) return true;
    stop_.request_stop();
    return false;
  };
  return ForEachWithProgress(
      jobs_.size(), [&](size_t i) { return RunJob(jobs_[i]); }, done_, 0, progress, kStreamThreads);
}

}  // namespace

Result<std::unique_ptr<RangeStream>> RangeStream::Open(const Repository& repository,
                                                       const std::string& name,
                                                       const objects::CallOptions& call) {
  STASIS_ASSIGN(ImageRecord read, repository.ReadImage(name, call));
  auto record = std::make_shared<const ImageRecord>(std::move(read));
  STASIS_ASSIGN(ImagePlaces places, ImagePlaces::Read(repository, *record, call));
  return std::unique_ptr<RangeStream>(
      new RangeStream(repository, std::move(record), std::move(places)));
}

Status RangeStream::Read(std::span<const size_t> ranges,
                         std::span<const store::RangeOutput> outputs,
                         const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const {
  RangeReader reader(repository_, places_, outputs, placed);
  std::optional<EarlierUnits> earlier;
  if (earlier_) earlier.emplace(*earlier_, *record_);
  // Ranges are the first sequences of an image.
  const auto sequences = SequencesOf(record_->manifest);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const size_t range = ranges[i];
    std::vector<StoredUnit> present;
    if (earlier && outputs[i].earlier_range) {
      present = earlier->Of(*outputs[i].earlier_range, range);
    }
    reader.Add(static_cast<uint32_t>(i), sequences[range], record_->sequences[range], present);
  }
  return reader.Run(go_on);
}

}  // namespace stasis::repository
