#include "repository/pull.h"

#include <fmt/format.h>

#include <atomic>
#include <cassert>
#include <functional>
#include <memory>
#include <stop_token>

#include "repository/file_pull.h"
#include "repository/image_places.h"
#include "repository/unit_pull.h"
#include "store/image_folder.h"
#include "store/image_writer.h"

namespace stasis::repository {

namespace {

class Puller {
 public:
  Puller(const Repository& repository, std::string name, const PullOptions& options)
      : repository_(repository),
        name_(std::move(name)),
        options_(options),
        forward_(options.stop, [this] { stop_.request_stop(); }) {
    call_.deadline = options.deadline;
    call_.stop = stop_.get_token();
  }
  Result<PullReport> Run(const std::string& store, const std::string& local_name);

 private:
  Status ReadNames();
  Result<store::Manifest> WriteParts(store::ImageWriter& writer, const ImagePlaces& places);
  Status Commit(store::ImageWriter& writer, store::Manifest& manifest);
  uint64_t TotalBytes() const;
  bool Report(uint64_t done, uint64_t total) {
    if (!options_.progress || options_.progress(done, total)) return true;
    stop_.request_stop();
    return false;
  }

  const Repository& repository_;
  const std::string name_;
  const PullOptions& options_;
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> forward_;
  objects::CallOptions call_;
  ImageRecord record_;
  PackNames pack_names_;
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> fetched_{0};
  PullReport report_;
};

// Without names the image can still be read.
Status Puller::ReadNames() {
  std::vector<std::string> unread;
  STASIS_ASSIGN(pack_names_, ReadPackNames(repository_, record_, *options_.names, call_, unread));
  for (const std::string& why : unread) {
    report_.notes.push_back("units were not shared with local images: " + why);
  }
  return {};
}

uint64_t Puller::TotalBytes() const {
  uint64_t total = 0;
  const auto sequences = SequencesOf(record_.manifest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (options_.without_ranges && sequences[i].kind == Sequence::Kind::kRange) continue;
    uint64_t unit = 0;
    for (const StoredRun& run : record_.sequences[i]) {
      unit += run.units;
      if (run.is_zero()) continue;
      total += uint64_t{run.units - 1} * sequences[i].unit_bytes + sequences[i].UnitBytes(unit - 1);
    }
  }
  return total;
}

Result<store::Manifest> Puller::WriteParts(store::ImageWriter& writer, const ImagePlaces& places) {
  store::WriteOptions blocks = options_.write;
  blocks.uid = record_.manifest.job.uid;
  blocks.progress = [this](uint64_t) { return Report(done_, report_.image_bytes); };
  const store::WriteOptions pages = store::ForPages(blocks);
  const PullContext context{repository_,
                            record_,
                            places,
                            pack_names_,
                            *options_.names,
                            call_,
                            done_,
                            fetched_,
                            report_.image_bytes,
                            [this](uint64_t done, uint64_t total) { return Report(done, total); }};
  store::Manifest manifest = record_.manifest;
  manifest.unit_naming.reset();
  manifest.page_files.clear();
  manifest.ranges_elsewhere = options_.without_ranges && !manifest.ranges.empty();
  if (!options_.without_ranges) manifest.ranges.clear();
  for (const auto kind : {Sequence::Kind::kRange, Sequence::Kind::kPageFile}) {
    const bool is_range = kind == Sequence::Kind::kRange;
    if (is_range && options_.without_ranges) continue;
    if (is_range ? record_.manifest.ranges.empty() : record_.manifest.page_files.empty()) continue;
    STASIS_ASSIGN(const auto written, PullUnits(context, writer, is_range ? blocks : pages, kind));
    written.DescribeIn(manifest);
    report_.shared_bytes += written.shared_bytes;
    report_.notes.insert(report_.notes.end(), written.notes.begin(), written.notes.end());
  }
  STASIS_TRY(PullFiles(context, writer));
  return manifest;
}

// The image keeps its id and the time of its dump. Its files are compared with the checksums that
// were recorded at the dump, before the image becomes visible.
Status Puller::Commit(store::ImageWriter& writer, store::Manifest& manifest) {
  store::CommitOptions commit;
  commit.origin = options_.origin;
  commit.created_unix_ns = record_.manifest.created_unix_ns;
  commit.expected_files = &record_.manifest;
  commit.progress = [this](uint64_t, uint64_t) { return Report(done_, report_.image_bytes); };
  return writer.Commit(manifest, commit);
}

Result<PullReport> Puller::Run(const std::string& store, const std::string& local_name) {
  assert(options_.names != nullptr);
  const Stopwatch watch;
  const objects::Counters before = repository_.store().counters();
  STASIS_TRY(store::CheckImageName(name_));
  auto record = repository_.ReadImage(name_, call_);
  if (!record) {
    if (record.error().code != Code::kNotFound) return Fail(std::move(record).error());
    return Fail(Code::kNotFound, Domain::kImage, 0,
                fmt::format("{} has no image {}", repository_.store().Name(), name_));
  }
  record_ = std::move(*record);
  if (options_.accept) STASIS_TRY(options_.accept(record_.manifest));
  report_.image_bytes = TotalBytes();
  STASIS_ASSIGN(const ImagePlaces places, ImagePlaces::Read(repository_, record_, call_));
  STASIS_TRY(ReadNames());
  STASIS_ASSIGN(const auto writer, store::ImageWriter::Begin(store, local_name));
  STASIS_ASSIGN(store::Manifest manifest, store::WithSpaceHint(WriteParts(*writer, places), store));
  STASIS_TRY(Commit(*writer, manifest));
  (void)writer->AfterCommit();  // a sweep removes files that this call leaves
  const objects::Counters after = repository_.store().counters();
  report_.path = writer->path();
  report_.fetched_bytes = fetched_;
  report_.received_bytes = after.bytes_received - before.bytes_received;
  report_.requests = after.requests - before.requests;
  report_.retries = after.retries - before.retries;
  report_.seconds = watch.Seconds();
  return std::move(report_);
}

}  // namespace

Result<PullReport> Pull(const Repository& repository, const std::string& name,
                        const std::string& store, const std::string& local_name,
                        const PullOptions& options) {
  return Annotate(Puller(repository, name, options).Run(store, local_name),
                  fmt::format("pull {} from {}", name, repository.store().Name()));
}

}  // namespace stasis::repository
