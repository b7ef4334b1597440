#include "repository/image_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/little_endian.h"
#include "repository/limits.h"
#include "store/manifest_codec.h"

namespace stasis::repository {

namespace {

constexpr size_t kRunBytes = 12;
constexpr uint64_t kMaxRunUnits = std::numeric_limits<uint32_t>::max();

// Returns runs of zero units for a whole sequence.
std::vector<store::UnitRun> ZeroRuns(uint64_t units) {
  std::vector<store::UnitRun> runs;
  for (; units > 0; units -= runs.back().units) {
    runs.push_back(
        {store::UnitRun::kZeros, 0, static_cast<uint32_t>(std::min(units, kMaxRunUnits))});
  }
  return runs;
}

Result<std::vector<StoredRun>> ReadRuns(BodyReader& body, uint64_t& total_runs) {
  STASIS_ASSIGN(const uint32_t count, body.Count(kMaxImageRuns, kRunBytes, "runs"));
  total_runs += count;
  if (total_runs > kMaxImageRuns) {
    return BadRecord(fmt::format("it claims more than {} runs", kMaxImageRuns));
  }
  std::vector<StoredRun> runs(count);
  for (StoredRun& run : runs) {
    STASIS_ASSIGN(const auto pack, body.Number<uint32_t>());
    STASIS_ASSIGN(run.first, body.Number<uint32_t>());
    STASIS_ASSIGN(run.units, body.Number<uint32_t>());
    run.pack = pack == 0 ? StoredRun::kZeros : pack - 1;
  }
  return runs;
}

// Checks the runs of one sequence, counts its units in packs and marks the packs that it uses.
Status CheckRuns(const Sequence& sequence, const std::vector<StoredRun>& runs,
                 std::vector<bool>& used, uint64_t& units_in_packs) {
  uint64_t units = 0;
  for (const StoredRun& run : runs) {
    const bool in_place =
        run.is_zero() ? run.first == 0
                      : run.pack < used.size() && uint64_t{run.first} + run.units <= kMaxPushUnits;
    units += run.units;
    if (run.units == 0 || !in_place || units > sequence.units()) {
      return BadRecord(
          fmt::format("it has an invalid run of {} units from unit {} of pack {} of {}", run.units,
                      run.first, run.pack, used.size()));
    }
    if (run.is_zero()) continue;
    used[run.pack] = true;
    units_in_packs += run.units;
  }
  if (units == sequence.units() && units_in_packs <= kMaxImageUnits) return {};
  return BadRecord(fmt::format("a sequence of {} bytes needs {} units, but has {}",
                               sequence.size_bytes, sequence.units(), units));
}

Status CheckSequences(const ImageRecord& image) {
  const auto sequences = SequencesOf(image.manifest);
  if (sequences.size() != image.sequences.size()) {
    return BadRecord(fmt::format("it has {} lists of runs instead of {}", image.sequences.size(),
                                 sequences.size()));
  }
  std::vector<bool> used(image.packs.size());
  uint64_t units_in_packs = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    STASIS_TRY(CheckRuns(sequences[i], image.sequences[i], used, units_in_packs));
  }
  if (std::find(used.begin(), used.end(), false) != used.end()) {
    return BadRecord("it lists a pack that it does not need");
  }
  const std::set<PackId> different(image.packs.begin(), image.packs.end());
  if (different.size() != image.packs.size()) return BadRecord("it lists a pack twice");
  return {};
}

}  // namespace

void ImageRecord::AddTo(References& references) const {
  for (const PackId& pack : packs) references.Add(pack);
}

std::map<PushId, std::vector<uint32_t>> PacksByPush(const ImageRecord& record) {
  std::map<PushId, std::vector<uint32_t>> packs;
  for (uint32_t i = 0; i < record.packs.size(); ++i) packs[record.packs[i].push].push_back(i);
  return packs;
}

std::vector<Sequence> SequencesOf(const store::Manifest& manifest) {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < manifest.ranges.size(); ++i) {
    const store::DeviceRange& range = manifest.ranges[i];
    sequences.push_back({Sequence::Kind::kRange, i, range.size_bytes, range.block_bytes});
  }
  for (size_t i = 0; i < manifest.page_files.size(); ++i) {
    sequences.push_back(
        {Sequence::Kind::kPageFile, i, manifest.page_files[i].size_bytes, store::kPageBytes});
  }
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    sequences.push_back({Sequence::Kind::kFile, i, manifest.files[i].size_bytes, kFileUnitBytes});
  }
  return sequences;
}

void AppendRun(std::vector<StoredRun>& runs, const StoredRun& run) {
  StoredRun* last = runs.empty() ? nullptr : &runs.back();
  const bool follows = last != nullptr && last->pack == run.pack &&
                       (run.is_zero() || last->first + last->units == run.first) &&
                       uint64_t{last->units} + run.units <= kMaxRunUnits;
  if (follows) {
    last->units += run.units;
  } else {
    runs.push_back(run);
  }
}

void RemovePlaces(store::Manifest& manifest) {
  manifest.packs.clear();
  for (const Sequence& sequence : SequencesOf(manifest)) {
    auto runs = ZeroRuns(sequence.units());
    if (sequence.kind == Sequence::Kind::kRange) {
      manifest.ranges[sequence.index].runs = std::move(runs);
    } else if (sequence.kind == Sequence::Kind::kPageFile) {
      manifest.page_files[sequence.index].runs = std::move(runs);
    }
  }
}

Result<std::string> EncodeImage(const ImageRecord& image) {
  STASIS_TRY(CheckSequences(image));
  STASIS_ASSIGN(const std::string manifest, store::EncodeManifest(image.manifest));
  std::string body;
  AppendNumber(body, image.pushed_unix_ns);
  AppendPackIds(body, image.packs);
  AppendNumber(body, static_cast<uint32_t>(image.sequences.size()));
  uint64_t total_runs = 0;
  for (const auto& runs : image.sequences) {
    total_runs += runs.size();
    AppendNumber(body, static_cast<uint32_t>(runs.size()));
    for (const StoredRun& run : runs) {
      AppendNumber(body, run.is_zero() ? uint32_t{0} : run.pack + 1);
      AppendNumber(body, run.first);
      AppendNumber(body, run.units);
    }
  }
  AppendNumber(body, static_cast<uint32_t>(manifest.size()));
  body += manifest;
  if (total_runs > kMaxImageRuns) {
    return Fail(Code::kResourceExhausted, Domain::kImage, 0,
                fmt::format("the image's memory is too fragmented: {} runs of units; at most {} "
                            "are allowed",
                            total_runs, kMaxImageRuns));
  }
  return body;
}

Result<ImageRecord> DecodeImage(std::string_view data) {
  BodyReader body(data);
  ImageRecord image;
  STASIS_ASSIGN(image.pushed_unix_ns, body.Number<int64_t>());
  STASIS_ASSIGN(image.packs, ReadPackIds(body));
  STASIS_ASSIGN(const uint32_t sequences, body.Count(kMaxImageRuns, sizeof(uint32_t), "sequences"));
  image.sequences.resize(sequences);
  uint64_t total_runs = 0;
  for (auto& runs : image.sequences) {
    STASIS_ASSIGN(runs, ReadRuns(body, total_runs));
  }
  STASIS_ASSIGN(const uint32_t bytes,
                body.Count(store::kMaxManifestBytes, 1, "bytes of a manifest"));
  STASIS_ASSIGN(const std::string_view manifest, body.Bytes(bytes));
  STASIS_TRY(body.End());
  STASIS_ASSIGN(image.manifest, store::DecodeManifest(manifest));
  if (!image.manifest.packs.empty()) {
    return BadRecord("its manifest names packs of a local store");
  }
  STASIS_TRY(CheckSequences(image));
  return image;
}

}  // namespace stasis::repository
