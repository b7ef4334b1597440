#include "repository/range_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stop_token>
#include <tuple>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "repository/unit_fetch.h"

namespace stasis::repository {
namespace {

using store::UnitJobs;

constexpr unsigned kStreamThreads = 8;               // in addition to one per processor: they wait
constexpr uint64_t kZeroBytes = uint64_t{64} << 20;  // of zeros that are written by one job

// A stored unit, and a place where it belongs.
struct WantedUnit {
  StoredUnit stored;
  UnitJobs::Place to;
  uint32_t bytes = 0;

  bool operator<(const WantedUnit& other) const {
    return std::tie(stored, to.output, to.at) <
           std::tie(other.stored, other.to.output, other.to.at);
  }
};

// One request, or zeros.
struct StreamJob {
  UnitJobs::Place first;  // its first place, by which jobs are ordered
  const FetchRange* range = nullptr;
  uint64_t zero_bytes = 0;
};

class RangeReader {
 public:
  RangeReader(const Repository& repository, const ImagePlaces& places,
              std::span<char* const> outputs, const UnitJobs::Placed& placed)
      : repository_(repository), places_(places), outputs_(outputs), placed_(placed) {}

  // Adds a range of the image.
  void Add(uint32_t output, const Sequence& sequence, const std::vector<StoredRun>& runs);
  Status Run(const std::function<bool()>& go_on);

 private:
  std::span<const WantedUnit> PlacesOf(const StoredUnit& unit) const {
    const auto [first, last] = std::equal_range(
        wanted_.begin(), wanted_.end(), WantedUnit{unit, {}, 0},
        [](const WantedUnit& a, const WantedUnit& b) { return a.stored < b.stored; });
    return {first, last};
  }
  char* At(const UnitJobs::Place& place) const { return outputs_[place.output] + place.at; }
  void Plan();
  Status RunJob(const StreamJob& job);

  const Repository& repository_;
  const ImagePlaces& places_;
  const std::span<char* const> outputs_;
  const UnitJobs::Placed& placed_;
  std::vector<WantedUnit> wanted_;  // sorted by Plan
  std::vector<FetchRange> ranges_;
  std::vector<StreamJob> jobs_;
  std::stop_source stop_;
  const objects::CallOptions call_{Deadline(), stop_.get_token()};
  std::atomic<uint64_t> done_{0};
};

void RangeReader::Add(uint32_t output, const Sequence& sequence,
                      const std::vector<StoredRun>& runs) {
  uint64_t unit = 0;
  for (const StoredRun& run : runs) {
    const uint64_t end = std::min((unit + run.units) * sequence.unit_bytes, sequence.size_bytes);
    for (uint64_t at = unit * sequence.unit_bytes; run.is_zero() && at < end; at += kZeroBytes) {
      jobs_.push_back({{output, at}, nullptr, std::min(kZeroBytes, end - at)});
    }
    for (uint32_t i = 0; !run.is_zero() && i < run.units; ++i) {
      wanted_.push_back({{run.pack, run.first + i},
                         {output, (unit + i) * sequence.unit_bytes},
                         sequence.UnitBytes(unit + i)});
    }
    unit += run.units;
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
    StreamJob job{PlacesOf({range.pack, range.units.front()}).front().to, &range, 0};
    jobs_.push_back(job);
  }
  // The arenas are filled from their beginnings, because the GPU is loaded from there meanwhile.
  std::sort(jobs_.begin(), jobs_.end(), [](const StreamJob& a, const StreamJob& b) {
    return std::tie(a.first.output, a.first.at) < std::tie(b.first.output, b.first.at);
  });
}

Status RangeReader::RunJob(const StreamJob& job) {
  if (job.range == nullptr) {
    std::memset(At(job.first), 0, job.zero_bytes);
    return placed_(job.first, job.zero_bytes);
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

Status RangeStream::Read(std::span<const size_t> ranges, std::span<char* const> outputs,
                         const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const {
  RangeReader reader(repository_, places_, outputs, placed);
  // Ranges are the first sequences of an image.
  const auto sequences = SequencesOf(record_.manifest);
  for (size_t i = 0; i < ranges.size(); ++i) {
    reader.Add(static_cast<uint32_t>(i), sequences[ranges[i]], record_.sequences[ranges[i]]);
  }
  return reader.Run(go_on);
}

}  // namespace stasis::repository
