#include "repository/push.h"

#include <fmt/format.h>

#include <atomic>
#include <cassert>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "repository/image_units.h"
#include "repository/item_names.h"
#include "repository/known_units.h"
#include "repository/pack_upload.h"
#include "repository/push_plan.h"
#include "repository/record_clock.h"
#include "store/image_folder.h"

namespace stasis::repository {

namespace {

// The maximum number of rounds: the upload, then repairs. A second repair is rare, because no gc
// can delete the packs that a repair uses.
constexpr unsigned kMaxRounds = 8;
constexpr unsigned kUploadThreads = 2;  // in addition to one per processor
constexpr std::chrono::seconds kCleanUpTimeout{30};

class Pusher {
 public:
  Pusher(const Repository& repository, const store::ImageReader& image, std::string name,
         const PushOptions& options)
      : repository_(repository),
        image_(image),
        name_(std::move(name)),
        options_(options),
        forward_(options.stop, [this] { stop_.request_stop(); }),
        clock_(options.record_valid) {
    call_.deadline = options.deadline;
    call_.stop = stop_.get_token();
  }

  Result<PushReport> Run();

 private:
  Status CheckName();
  Status VerifyFiles();
  Status Look();
  Status PutAll();
  Status WritePending();
  Status PutPacks(const std::vector<NewPack>& packs);
  Status PutIndex(const std::vector<NewPack>& packs);
  Result<std::set<PackId>> AskCondemned();
  Result<std::set<PackId>> AskPresent();
  Status Publish();
  void RemovePending();
  Status CheckPublished();
  // Returns a progress callback that also interrupts requests in progress.
  Progress Watched();

  const Repository& repository_;
  const store::ImageReader& image_;
  const std::string name_;
  const PushOptions& options_;
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> forward_;
  objects::CallOptions call_;
  RecordClock clock_;

  std::optional<ImageUnits> units_;
  std::vector<Id128> names_;
  std::optional<PushPlan> plan_;
  PushId pending_;        // the name of the pending record
  std::set<PushId> own_;  // pushes of this image
  bool is_pending_ = false;
  bool is_there_ = false;                   // the repository already had this image
  std::map<PackId, PackTable> tables_;      // of own packs
  std::map<PackId, uint64_t> known_bytes_;  // object sizes of packs that the repository had
  PushReport report_;
};

Progress Pusher::Watched() {
  return [this](uint64_t done, uint64_t total) {
    if (!options_.progress || options_.progress(done, total)) return true;
    stop_.request_stop();
    return false;
  };
}

Status Pusher::CheckName() {
  STASIS_TRY(store::CheckImageName(name_));
  STASIS_ASSIGN(const bool exists, repository_.Exists(ImageKey(name_), call_));
  if (!exists) return {};
  // An earlier push of this image may have lost the answer to its last request.
  auto record = repository_.ReadImage(name_, call_);
  is_there_ = record && record->manifest.image_id == image_.manifest().image_id;
  if (is_there_) return {};
  return Fail(Code::kAlreadyExists, Domain::kImage, 0,
              repository_.NameOf(ImageKey(name_)) + " exists already",
              "Choose another name; an image is never overwritten.");
}

// Units are checked later, when they are read for the upload. Files have checksums of their own,
// which are checked here.
Status Pusher::VerifyFiles() {
  STASIS_ASSIGN(const auto report, image_.Verify(store::VerifyLevel::kAllButUnits));
  return report.ToStatus(image_.path());
}

Status Pusher::Look() {
  STASIS_ASSIGN(units_, ImageUnits::Open(image_));
  STASIS_ASSIGN(names_, NameItems(*units_, image_, *options_.names, options_.trusts_index,
                                  [this](uint64_t, uint64_t) { return Watched()(0, 0); }));
  const store::UnitNaming naming{store::kUnitNameFunction, options_.names->key().id()};
  STASIS_ASSIGN(KnownUnits known, KnownUnits::Look(repository_, naming, call_));
  known_bytes_ = known.ObjectBytes();
  plan_.emplace(*units_, names_, known);
  report_.image_bytes = plan_->total_bytes();
  report_.known_bytes = plan_->known_bytes();
  report_.notes = known.notes();
  return {};
}

Status Pusher::WritePending() {
  Pending pending;
  pending.written_unix_ns = UnixNowNs();
  for (const PackId& pack : plan_->Packs()) {
    if (!own_.contains(pack.push)) pending.packs.push_back(pack);
  }
  pending.own.assign(own_.begin(), own_.end());
  // Write the record under a new name: a gc may consider the earlier one abandoned and be about to
  // delete it.
  const PushId before = pending_;
  const bool replaces = is_pending_;
  STASIS_ASSIGN(pending_, PushId::Random());
  clock_.Written();  // before the request, which may take a long time
  is_pending_ = true;
  STASIS_TRY(
      repository_.Write(RecordKind::kPending, PendingKey(pending_), EncodePending(pending), call_));
  if (replaces) STASIS_TRY(repository_.store().Delete(PendingKey(before), call_));
  return {};
}

Status Pusher::PutPacks(const std::vector<NewPack>& packs) {
  const PackSource source{*units_, *options_.names, names_, options_.codec};
  std::vector<PackTable> tables(packs.size());
  std::atomic<uint64_t> done{0};
  uint64_t total = 0;
  for (const NewPack& pack : packs) {
    for (const uint32_t item : pack.items) total += units_->items()[item].bytes;
  }
  auto upload = [&](size_t i) -> Status {
    STASIS_ASSIGN(tables[i], UploadPack(repository_, source, packs[i], call_));
    for (const uint32_t item : packs[i].items) done += units_->items()[item].bytes;
    return {};
  };
  STASIS_TRY(ForEachWithProgress(packs.size(), upload, done, total, Watched(), kUploadThreads));
  for (size_t i = 0; i < packs.size(); ++i) tables_[packs[i].id] = std::move(tables[i]);
  report_.packs += packs.size();
  report_.new_bytes += total;
  return {};
}

// Stores each index of places before the index of names, because other pushes find packs by their
// names and then need the places.
Status Pusher::PutIndex(const std::vector<NewPack>& packs) {
  std::map<PushId, NamesIndex> indexes;
  for (const NewPack& pack : packs) {
    NamesIndex& index = indexes[pack.id.push];
    index.packs.push_back(tables_[pack.id]);
    for (const uint32_t item : pack.items) index.names.push_back(names_[item]);
  }
  for (auto& [push, index] : indexes) {
    index.naming = {store::kUnitNameFunction, options_.names->key().id()};
    STASIS_TRY(
        repository_.Write(RecordKind::kPlace, PlaceKey(push), EncodePlace(index.packs), call_));
    STASIS_TRY(repository_.Write(RecordKind::kNames, NamesKey(push), EncodeNames(index), call_));
  }
  return {};
}

Result<std::set<PackId>> Pusher::AskCondemned() {
  STASIS_ASSIGN(const References condemned, ReadAllCondemned(repository_, call_));
  std::set<PackId> lost;
  for (const PackId& pack : plan_->Packs()) {
    if (condemned.packs.contains(pack) || condemned.pushes.contains(pack.push)) lost.insert(pack);
  }
  return lost;
}

Result<std::set<PackId>> Pusher::AskPresent() {
  std::map<std::string, uint64_t> present;
  for (const char* prefix : {kPacksPrefix, kIndexPrefix}) {
    STASIS_ASSIGN(auto objects, repository_.List(prefix, call_));
    for (auto& object : objects) present.emplace(std::move(object.key), object.bytes);
  }
  std::set<PackId> lost;
  for (const PackId& pack : plan_->Packs()) {
    const auto own = tables_.find(pack);
    const uint64_t bytes = own != tables_.end() ? own->second.object_bytes() : known_bytes_[pack];
    const auto object = present.find(PackKey(pack));
    if (object == present.end() || object->second != bytes ||
        !present.contains(PlaceKey(pack.push))) {
      lost.insert(pack);
    }
  }
  return lost;
}

// Writes all objects that the image needs, and checks that no gc has deleted, or will delete, any
// of them.
Status Pusher::PutAll() {
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    STASIS_ASSIGN(const auto packs, plan_->PlaceRest());
    for (const NewPack& pack : packs) {
      if (own_.insert(pack.id.push).second && options_.announced) {
        options_.announced(pack.id.push);
      }
    }
    STASIS_TRY(WritePending());
    STASIS_TRY(PutPacks(packs));
    STASIS_TRY(PutIndex(packs));
    // The upload may have taken so long that other processes consider the pending record abandoned.
    if (!clock_.IsValid()) STASIS_TRY(WritePending());
    STASIS_ASSIGN(auto lost, AskCondemned());
    STASIS_ASSIGN(auto missing, AskPresent());
    lost.merge(missing);
    if (lost.empty() && clock_.IsValid()) return {};
    if (!lost.empty()) report_.repairs += 1;
    plan_->Lose(lost);
  }
  return Fail(
      Code::kUnavailable, Domain::kImage, 0,
      fmt::format("{} times in a row, packs in {} were deleted while they were pushed, or "
                  "requests took longer than {} s",
                  kMaxRounds, repository_.store().Name(),
                  std::chrono::duration_cast<std::chrono::seconds>(options_.record_valid).count()),
      "Try again when no gc is running and the storage answers faster.");
}

// Another push of this name may have ended at the same moment; the later request wins.
Status Pusher::CheckPublished() {
  STASIS_ASSIGN(const ImageRecord record, repository_.ReadImage(name_, call_));
  if (record.manifest.image_id == image_.manifest().image_id) return {};
  return Fail(Code::kAborted, Domain::kImage, 0,
              fmt::format("another image was pushed as {} at the same time, and replaced this one",
                          repository_.NameOf(ImageKey(name_))),
              "Push it under another name.");
}

Status Pusher::Publish() {
  STASIS_TRY(CheckName());
  if (is_there_) return {};
  ImageRecord record;
  record.pushed_unix_ns = UnixNowNs();
  record.manifest = image_.manifest();
  RemovePlaces(record.manifest);
  plan_->Describe(record);
  STASIS_ASSIGN(const std::string body, EncodeImage(record));
  auto written = repository_.Write(RecordKind::kImage, ImageKey(name_), body, call_);
  if (written) return CheckPublished();
  // The request may still take effect, so the pending record must stay.
  is_pending_ = false;
  return Fail(std::move(written.error())
                  .WithContext(repository_.NameOf(ImageKey(name_)) + " may exist or not"));
}

// If the record cannot be removed, it stays until a gc finds that it is abandoned.
void Pusher::RemovePending() {
  if (!is_pending_) return;
  const auto removed =
      repository_.store().Delete(PendingKey(pending_), {Deadline::In(kCleanUpTimeout), {}});
  if (!removed) {
    report_.notes.push_back("the record of this push could not be removed, which delays gc: " +
                            removed.error().ToString());
  }
  is_pending_ = false;
}

Result<PushReport> Pusher::Run() {
  assert(options_.names != nullptr);
  const Stopwatch watch;
  const objects::Counters before = repository_.store().counters();
  STASIS_TRY(CheckName());
  if (is_there_) {
    report_.notes.push_back("the repository had this image already");
    report_.seconds = watch.Seconds();
    return std::move(report_);
  }
  STASIS_TRY(VerifyFiles());
  STASIS_TRY(Look());
  Status status = PutAll();
  if (status) status = Publish();
  RemovePending();
  STASIS_TRY(std::move(status));
  const objects::Counters after = repository_.store().counters();
  report_.requests = after.requests - before.requests;
  report_.retries = after.retries - before.retries;
  report_.sent_bytes = after.bytes_sent - before.bytes_sent;
  report_.seconds = watch.Seconds();
  return std::move(report_);
}

}  // namespace

Result<PushReport> Push(const Repository& repository, const store::ImageReader& image,
                        const std::string& name, const PushOptions& options) {
  return Annotate(Pusher(repository, image, name, options).Run(),
                  fmt::format("push {} to {}", image.path(), repository.store().Name()));
}

}  // namespace stasis::repository
