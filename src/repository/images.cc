#include "repository/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>

#include "base/checksum.h"
#include "repository/image_places.h"
#include "repository/pack_names.h"
#include "repository/unit_fetch.h"
#include "store/image_folder.h"
#include "store/image_report.h"

namespace stasis::repository {

namespace {

tl::unexpected<Error> NoSuchImage(const Repository& repository, const std::string& name) {
  return Fail(Code::kNotFound, Domain::kImage, 0,
              fmt::format("{} has no image {}", repository.store().Name(), name));
}

// Returns whether an error means that a part of the image is damaged, rather than that a request
// failed.
bool IsFinding(const Error& error) {
  return error.code == Code::kDataLoss || error.code == Code::kUnimplemented ||
         error.code == Code::kInvalidArgument;
}

// Returns the units of all ranges and page files.
std::vector<StoredUnit> MemoryUnits(const ImageRecord& record) {
  std::vector<StoredUnit> units;
  const auto sequences = SequencesOf(record.manifest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].kind == Sequence::Kind::kFile) continue;
    for (const StoredRun& run : record.sequences[i]) {
      for (uint32_t i = 0; !run.is_zero() && i < run.units; ++i) {
        units.push_back({run.pack, run.first + i});
      }
    }
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

uint64_t FileBytes(const ImagePlaces& places, const StoredRun& run) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; !run.is_zero() && i < run.units; ++i) {
    bytes += places.table(run.pack).Place(run.first + i).plain_bytes;
  }
  return bytes;
}

// Computes the checksums of a file from its bytes in order, and compares them with the recorded
// ones.
class FileChecksums {
 public:
  FileChecksums(const store::File& file, uint64_t chunk_bytes)
      : file_(file), chunk_bytes_(chunk_bytes) {}

  void Add(std::string_view data) {
    while (!data.empty()) {
      const std::string_view some = data.substr(0, chunk_bytes_ - in_chunk_);
      stream_.Update(some);
      in_chunk_ += some.size();
      position_ += some.size();
      data.remove_prefix(some.size());
      if (in_chunk_ == chunk_bytes_) EndChunk();
    }
  }
  // The last unit may reach beyond the end of the file.
  void AddZeros(uint64_t bytes) {
    static constexpr char kZeros[4096] = {};
    bytes = std::min(bytes, file_.size_bytes - std::min(position_, file_.size_bytes));
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t some = std::min<uint64_t>(sizeof kZeros, bytes - done);
      Add({kZeros, some});
      done += some;
    }
  }
  Status Check() {
    if (in_chunk_ > 0) EndChunk();
    if (position_ == file_.size_bytes && computed_ == file_.checksums) return {};
    return Fail(
        Code::kDataLoss, Domain::kImage, 0,
        fmt::format("file {} does not have the checksum that the dump recorded", file_.path));
  }

 private:
  void EndChunk() {
    computed_.push_back(stream_.Finish());
    stream_.Reset();
    in_chunk_ = 0;
  }

  const store::File& file_;
  const uint64_t chunk_bytes_;
  ChecksumStream stream_;
  uint64_t position_ = 0, in_chunk_ = 0;
  std::vector<Id128> computed_;
};

class Verifier {
 public:
  Verifier(const Repository& repository, std::string name, const VerifyOptions& options)
      : repository_(repository),
        name_(std::move(name)),
        options_(options),
        forward_(options.stop, [this] { stop_.request_stop(); }) {
    call_.deadline = options.deadline;
    call_.stop = stop_.get_token();
  }

  Result<VerifyReport> Run() {
    const Stopwatch watch;
    Status status = Check();
    if (!status) {
      if (!IsFinding(status.error())) return Fail(std::move(status).error());
      report_.findings.push_back(status.error().ToString());
    }
    report_.seconds = watch.Seconds();
    return std::move(report_);
  }

 private:
  Status Check();
  Status CheckPacks(const ImagePlaces& places, const ImageRecord& record);
  Status ReadUnits(const ImagePlaces& places, const ImageRecord& record);
  Status ReadMemory(const ImagePlaces& places, const FetchRange& range);
  Status ReadFile(const ImagePlaces& places, const ImageRecord& record, size_t sequence);
  Status CheckName(const ImagePlaces& places, const StoredUnit& stored, std::string_view plain) {
    if (options_.names == nullptr) return {};
    return CheckUnitName(names_, *options_.names, places, stored, plain);
  }
  // Adds `status` to the findings if it means damage. Returns it if it is any other error.
  Status Note(Status status);

  const Repository& repository_;
  const std::string name_;
  const VerifyOptions& options_;
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> forward_;
  objects::CallOptions call_;
  PackNames names_;
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;  // guards the findings
  VerifyReport report_;
};

Status Verifier::Check() {
  STASIS_TRY(store::CheckImageName(name_));
  auto record = repository_.ReadImage(name_, call_);
  if (!record) {
    if (record.error().code == Code::kNotFound) return NoSuchImage(repository_, name_);
    return Fail(std::move(record).error());
  }
  report_.packs = record->packs.size();
  if (record->pushed_unix_ns < options_.not_before_unix_ns) {
    report_.findings.push_back(
        "the image was pushed before the given time: the storage may have "
        "brought back an earlier image of this name");
  }
  STASIS_ASSIGN(const ImagePlaces places, ImagePlaces::Read(repository_, *record, call_));
  STASIS_TRY(CheckPacks(places, *record));
  if (!options_.reads_units || !report_.findings.empty()) return {};
  return ReadUnits(places, *record);
}

Status Verifier::CheckPacks(const ImagePlaces& places, const ImageRecord& record) {
  std::map<std::string, uint64_t> bytes;
  STASIS_ASSIGN(const auto packs, repository_.List(kPacksPrefix, call_));
  for (const auto& object : packs) bytes.emplace(object.key, object.bytes);
  for (uint32_t i = 0; i < record.packs.size(); ++i) {
    const std::string key = PackKey(record.packs[i]);
    const auto found = bytes.find(key);
    if (found == bytes.end()) {
      report_.findings.push_back(key + " is missing");
    } else if (found->second != places.table(i).object_bytes()) {
      report_.findings.push_back(fmt::format("{} has {} bytes instead of {}", key, found->second,
                                             places.table(i).object_bytes()));
    }
  }
  return {};
}

Status Verifier::Note(Status status) {
  if (status || !IsFinding(status.error())) return status;
  std::lock_guard lock(mutex_);
  report_.findings.push_back(status.error().ToString());
  return {};
}

Status Verifier::ReadMemory(const ImagePlaces& places, const FetchRange& range) {
  const auto received = [&](uint32_t unit, std::string_view plain) -> Status {
    STASIS_TRY(CheckName(places, {range.pack, unit}, plain));
    done_ += plain.size();
    return {};
  };
  return FetchUnits(repository_, places, range, received, call_);
}

// Reads a file in order from its beginning, because its checksums are computed in this order.
Status Verifier::ReadFile(const ImagePlaces& places, const ImageRecord& record, size_t sequence) {
  const Sequence file = SequencesOf(record.manifest)[sequence];
  FileChecksums checksums(record.manifest.files[file.index], record.manifest.chunk_bytes);
  for (const StoredRun& run : record.sequences[sequence]) {
    if (run.is_zero()) {
      checksums.AddZeros(uint64_t{run.units} * file.unit_bytes);
      continue;
    }
    std::vector<StoredUnit> units;
    for (uint32_t i = 0; i < run.units; ++i) units.push_back({run.pack, run.first + i});
    for (const FetchRange& range : PlanFetches(places, units)) {
      const auto received = [&](uint32_t unit, std::string_view plain) -> Status {
        STASIS_TRY(CheckName(places, {range.pack, unit}, plain));
        checksums.Add(plain);
        done_ += plain.size();
        return {};
      };
      STASIS_TRY(FetchUnits(repository_, places, range, received, call_));
    }
  }
  return checksums.Check();
}

Status Verifier::ReadUnits(const ImagePlaces& places, const ImageRecord& record) {
  if (options_.names != nullptr) {
    std::vector<std::string> unread;  // ignored, because a pull does not need the names
    STASIS_ASSIGN(names_, ReadPackNames(repository_, record, *options_.names, call_, unread));
  }
  const auto ranges = PlanFetches(places, MemoryUnits(record));
  uint64_t total = 0;
  for (const FetchRange& range : ranges) total += range.plain_bytes;
  std::vector<size_t> files;
  const auto sequences = SequencesOf(record.manifest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].kind != Sequence::Kind::kFile) continue;
    files.push_back(i);
    for (const StoredRun& run : record.sequences[i]) total += FileBytes(places, run);
  }
  const auto read = [&](size_t i) {
    if (i < ranges.size()) return Note(ReadMemory(places, ranges[i]));
    return Note(ReadFile(places, record, files[i - ranges.size()]));
  };
  const auto progress = [&](uint64_t now, uint64_t all) {
    if (!options_.progress || options_.progress(now, all)) return true;
    stop_.request_stop();
    return false;
  };
  STASIS_TRY(ForEachWithProgress(ranges.size() + files.size(), read, done_, total, progress, 2));
  report_.bytes = done_;
  std::sort(report_.findings.begin(), report_.findings.end());
  return {};
}

}  // namespace

Result<std::vector<ImageSummary>> ListImages(const Repository& repository,
                                             const objects::CallOptions& call) {
  STASIS_ASSIGN(const auto objects, repository.List(kImagesPrefix, call));
  std::vector<ImageSummary> images;
  for (const auto& object : objects) {
    const auto name = ParseImageKey(object.key);
    if (!name) continue;
    auto record = repository.ReadImage(*name, call);
    if (!record && record.error().code == Code::kNotFound) continue;  // deleted meanwhile
    if (!record && !IsFinding(record.error())) return Fail(std::move(record).error());
    ImageSummary& image = images.emplace_back();
    image.name = *name;
    if (!record) {
      image.error = std::move(record).error();
      continue;
    }
    const store::Manifest& manifest = record->manifest;
    image.id = manifest.image_id;
    image.created_unix_ns = manifest.created_unix_ns;
    image.pushed_unix_ns = record->pushed_unix_ns;
    image.job = manifest.job.id;
    image.command = manifest.job.argv;
    image.host = manifest.host.name;
    for (const Sequence& sequence : SequencesOf(manifest)) {
      if (sequence.kind != Sequence::Kind::kFile) image.memory_bytes += sequence.size_bytes;
    }
    image.device_bytes = store::DeviceBytes(manifest);
    image.packs = record->packs.size();
  }
  return images;
}

Result<VerifyReport> VerifyImage(const Repository& repository, const std::string& name,
                                 const VerifyOptions& options) {
  return Annotate(Verifier(repository, name, options).Run(),
                  fmt::format("verify {} in {}", name, repository.store().Name()));
}

Status DeleteImage(const Repository& repository, const std::string& name,
                   const objects::CallOptions& call) {
  STASIS_TRY(store::CheckImageName(name));
  STASIS_ASSIGN(const bool exists, repository.Exists(ImageKey(name), call));
  if (!exists) return NoSuchImage(repository, name);
  return repository.store().Delete(ImageKey(name), call);
}

}  // namespace stasis::repository
