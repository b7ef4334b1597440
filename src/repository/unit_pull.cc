#include "repository/unit_pull.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/parallel.h"
#include "store/thread_buffer.h"

namespace stasis::repository {

namespace {

using Kind = store::UnitWriter::Kind;

constexpr unsigned kFetchThreads = 2;        // in addition to one per processor
constexpr size_t kPageBatchBytes = 1 << 20;  // pages are written together, blocks one by one
constexpr uint64_t kMoreToLookUp = 1 << 20;  // as in store/page_writer.cc

class UnitPuller {
 public:
  UnitPuller(const PullContext& context, store::UnitWriter& units, std::vector<StoredUnit> at,
             size_t batch_bytes)
      : context_(context), units_(units), stored_(std::move(at)), batch_bytes_(batch_bytes) {}

  Status Run();

 private:
  // Units that have arrived and are written together.
  struct Batch {
    char* const data;
    size_t size = 0;
    std::vector<uint32_t> positions;  // the first position of each unit
    std::vector<size_t> begins;       // of each unit in `data`
    std::vector<uint32_t> bytes;

    std::string_view Data(size_t unit) const { return {data + begins[unit], bytes[unit]}; }
    void Clear() {
      size = 0;
      positions.clear();
      begins.clear();
      bytes.clear();
    }
  };
  // A position of the new image, and the stored unit that belongs there.
  struct Wanted {
    StoredUnit stored;
    uint32_t position;
    auto operator<=>(const Wanted&) const = default;
  };

  Id128 KnownName(const StoredUnit& stored) const {
    const auto& names = context_.pack_names[stored.pack];
    return stored.unit < names.size() ? names[stored.unit] : Id128{};
  }
  void SetLengths();
  void DecideKnown();
  Status Fetch(std::vector<Wanted> wanted);
  Status FetchRangeOf(const FetchRange& range, const std::vector<Wanted>& wanted);
  Status Add(Batch& batch, uint32_t position, std::string_view plain,
             const std::vector<Wanted>& wanted);
  Status Flush(Batch& batch, const std::vector<Wanted>& wanted);
  Status CheckOrDecide(uint32_t position, const Id128& name, std::span<const Wanted> same,
                       bool& is_new);

  const PullContext& context_;
  store::UnitWriter& units_;
  const std::vector<StoredUnit> stored_;  // by position
  const size_t batch_bytes_;
  std::mutex mutex_;  // guards decisions
};

void UnitPuller::SetLengths() {
  for (uint32_t i = 0; i < stored_.size(); ++i) {
    units_.unit(i).bytes =
        context_.places.table(stored_[i].pack).Place(stored_[i].unit).plain_bytes;
  }
}

void UnitPuller::DecideKnown() {
  for (uint32_t i = 0; i < stored_.size(); ++i) {
    const Id128 name = KnownName(stored_[i]);
    if (name.IsZero()) continue;
    units_.unit(i).stored.name = name;
    units_.Decide(i);
  }
}

// Units without a known name are fetched first, because whether a pack of an earlier image is
// linked depends on how many of its units are needed.
Status UnitPuller::Run() {
  SetLengths();
  DecideKnown();
  std::vector<Wanted> unnamed;
  for (uint32_t i = 0; i < stored_.size(); ++i) {
    if (units_.unit(i).stored.name.IsZero()) unnamed.push_back({stored_[i], i});
  }
  STASIS_TRY(Fetch(std::move(unnamed)));
  STASIS_TRY(units_.LinkEarlier([](uint32_t) { return true; }));
  std::vector<Wanted> rest;
  for (uint32_t i = 0; i < stored_.size(); ++i) {
    const auto& unit = units_.unit(i);
    if (unit.kind == Kind::kNew) rest.push_back({stored_[i], i});
    if (unit.kind == Kind::kLinked || unit.kind == Kind::kRepeated) context_.done += unit.bytes;
  }
  STASIS_TRY(Fetch(std::move(rest)));
  return units_.Finish();
}

Status UnitPuller::Fetch(std::vector<Wanted> wanted) {
  std::sort(wanted.begin(), wanted.end());
  std::vector<StoredUnit> units;
  for (const Wanted& one : wanted) {
    if (units.empty() || units.back() != one.stored) units.push_back(one.stored);
  }
  const auto ranges = PlanFetches(context_.places, units);
  return ForEachWithProgress(
      ranges.size(), [&](size_t i) { return FetchRangeOf(ranges[i], wanted); }, context_.done,
      context_.total, context_.progress, kFetchThreads);
}

Status UnitPuller::FetchRangeOf(const FetchRange& range, const std::vector<Wanted>& wanted) {
  // Do not use a buffer of this thread, because another thread may deliver the units.
  store::ThreadBuffer<store::kMaxExtentBytes> memory;
  Batch batch{memory.data()};
  auto received = [&](uint32_t unit, std::string_view plain) -> Status {
    const Wanted key{{range.pack, unit}, 0};
    const auto first = std::lower_bound(wanted.begin(), wanted.end(), key);
    return Add(batch, first->position, plain, wanted);
  };
  STASIS_TRY(FetchUnits(context_.repository, context_.places, range, received, context_.call));
  return Flush(batch, wanted);
}

Status UnitPuller::Add(Batch& batch, uint32_t position, std::string_view plain,
                       const std::vector<Wanted>& wanted) {
  if (batch.size > 0 && batch.size + plain.size() > batch_bytes_) {
    STASIS_TRY(Flush(batch, wanted));
  }
  batch.positions.push_back(position);
  batch.begins.push_back(batch.size);
  batch.bytes.push_back(static_cast<uint32_t>(plain.size()));
  std::memcpy(batch.data + batch.size, plain.data(), plain.size());
  batch.size += plain.size();
  return {};
}

// Compares `name` with the unit's known name. If the name was unknown, records it for all positions
// of the unit, and decides for each position whether the unit must be stored.
Status UnitPuller::CheckOrDecide(uint32_t position, const Id128& name, std::span<const Wanted> same,
                                 bool& is_new) {
  std::lock_guard lock(mutex_);
  const Id128& known = units_.unit(position).stored.name;
  if (!known.IsZero()) {
    is_new = units_.unit(position).kind == Kind::kNew;
    return known == name ? Status() : WrongUnitName(context_.places, stored_[position]);
  }
  is_new = false;
  for (const Wanted& one : same) {
    units_.unit(one.position).stored.name = name;
    if (units_.Decide(one.position) == Kind::kNew) is_new = true;
  }
  return {};
}

Status UnitPuller::Flush(Batch& batch, const std::vector<Wanted>& wanted) {
  std::vector<Id128> names;
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    names.push_back(context_.names.key().Hash(batch.Data(i)));
  }
  STASIS_TRY(context_.names.Encrypt(names));
  std::vector<uint32_t> fresh;
  size_t end = 0;  // of the data of new units, which is moved to the front
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const uint32_t position = batch.positions[i];
    const auto [first, last] =
        std::equal_range(wanted.begin(), wanted.end(), Wanted{stored_[position], 0},
                         [](const Wanted& a, const Wanted& b) { return a.stored < b.stored; });
    bool is_new = false;
    STASIS_TRY(CheckOrDecide(position, names[i], {first, last}, is_new));
    context_.fetched += batch.bytes[i];
    if (!is_new) continue;
    context_.done += batch.bytes[i];
    std::memmove(batch.data + end, batch.Data(i).data(), batch.bytes[i]);
    end += batch.bytes[i];
    fresh.push_back(position);
  }
  batch.Clear();
  return fresh.empty() ? Status() : units_.Store(fresh, {batch.data, end});
}

// Returns the stored unit of each position: of all units that are not zero, sequence by sequence.
std::vector<StoredUnit> StoredUnits(const ImageRecord& record, Sequence::Kind kind) {
  std::vector<StoredUnit> stored;
  const auto sequences = SequencesOf(record.manifest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].kind != kind) continue;
    for (const StoredRun& run : record.sequences[i]) {
      for (uint32_t k = 0; !run.is_zero() && k < run.units; ++k) {
        stored.push_back({run.pack, run.first + k});
      }
    }
  }
  return stored;
}

// Returns the runs of a sequence in the local image. `position` is the position of the sequence's
// first unit that is not zero. It is advanced to that of the next sequence.
Result<std::vector<store::UnitRun>> LocalRuns(store::UnitWriter& units,
                                              const std::vector<StoredRun>& stored,
                                              size_t& position) {
  std::vector<store::UnitRun> runs;
  for (size_t i = 0; i < stored.size();) {
    if (stored[i].is_zero()) {
      runs.push_back({store::UnitRun::kZeros, 0, stored[i].units});
      ++i;
      continue;
    }
    size_t end = position;
    for (; i < stored.size() && !stored[i].is_zero(); ++i) end += stored[i].units;
    STASIS_ASSIGN(const auto some, units.Runs(position, end));
    runs.insert(runs.end(), some.begin(), some.end());
    position = end;
  }
  return runs;
}

}  // namespace

Result<store::WrittenUnits> PullUnits(const PullContext& context, store::ImageWriter& writer,
                                      const store::WriteOptions& options, Sequence::Kind kind) {
  const bool is_range = kind == Sequence::Kind::kRange;
  auto stored = StoredUnits(context.record, kind);
  const size_t count = stored.size();
  STASIS_ASSIGN(const auto units,
                store::UnitWriter::Begin(
                    writer, context.names, options, is_range ? kBlockBytes : store::kPageBytes,
                    count, is_range ? store::kMaxImageUnits : count * 4 + kMoreToLookUp));
  STASIS_TRY(UnitPuller(context, *units, std::move(stored), is_range ? 0 : kPageBatchBytes).Run());

  std::vector<store::DeviceRange> ranges;
  std::vector<store::PageFile> page_files;
  const auto sequences = SequencesOf(context.record.manifest);
  size_t position = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].kind != kind) continue;
    STASIS_ASSIGN(auto runs, LocalRuns(*units, context.record.sequences[i], position));
    if (is_range) {
      ranges.push_back(context.record.manifest.ranges[sequences[i].index]);
      ranges.back().runs = std::move(runs);
    } else {
      page_files.push_back(context.record.manifest.page_files[sequences[i].index]);
      page_files.back().runs = std::move(runs);
    }
  }
  store::WrittenUnits written = units->Take();
  written.ranges = std::move(ranges);
  written.page_files = std::move(page_files);
  return written;
}

}  // namespace stasis::repository
