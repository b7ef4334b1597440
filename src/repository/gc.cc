#include "repository/gc.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "repository/record_clock.h"

namespace stasis::repository {

namespace {

constexpr size_t kMaxUnknown = 100;

// Objects that nothing needs, with their sizes in bytes.
struct Garbage {
  std::map<PackId, uint64_t> packs;
  std::map<PushId, std::map<std::string, uint64_t>> indexes;  // by key

  bool empty() const { return packs.empty() && indexes.empty(); }
  // Removes all needed objects from this list.
  void Spare(const References& needed) {
    std::erase_if(packs, [&](const auto& pack) { return needed.packs.contains(pack.first); });
    std::erase_if(indexes, [&](const auto& index) { return needed.pushes.contains(index.first); });
  }
  void SparePush(const PushId& push) {
    std::erase_if(packs, [&](const auto& pack) { return pack.first.push == push; });
    indexes.erase(push);
  }
};

class Collector {
 public:
  Collector(const Repository& repository, const GcOptions& options)
      : repository_(repository), options_(options), clock_(options.record_valid) {
    call_.deadline = options.deadline;
    call_.stop = options.stop;
  }
  Result<GcReport> Run();

 private:
  using ParseRecordKey = std::optional<PushId> (*)(std::string_view key);
  template <class Read>
  Status RemoveAbandonedBelow(const char* prefix, ParseRecordKey parse, Read read);
  Status RemoveAbandoned();
  Result<Garbage> List();
  // Returns whether the options let this gc delete objects of the push.
  bool MayDelete(const PushId& push) const {
    return !options_.only || options_.only->contains(push);
  }
  Status ReadPending(Garbage& garbage);
  Status ReadImages(Garbage& garbage);
  Status Condemn(const Garbage& garbage);
  Status SecondLook(Garbage& garbage);
  Status DeleteAll(Garbage& garbage);
  Status Delete(const std::string& key, uint64_t bytes);
  Status DeleteWhileValid(Garbage& garbage);
  bool IsAbandoned(int64_t written_unix_ns) const {
    return UnixNowNs() - written_unix_ns >= options_.abandoned.count();
  }
  bool IsDamagedAndAbandoned(const Error& error, const objects::ObjectInfo& object) const;
  void NoteUnknown(const std::string& key) {
    if (unknown_.size() < kMaxUnknown) unknown_.insert(key);
  }
  Status ReportProgress();

  const Repository& repository_;
  const GcOptions& options_;
  objects::CallOptions call_;
  RecordClock clock_;
  std::optional<GcId> id_;  // of this gc's record, once it is written
  uint64_t total_ = 0;      // objects to delete
  uint64_t done_ = 0;
  // A request to delete an object failed but may still take effect.
  bool may_still_delete_ = false;
  std::set<std::string> unknown_;
  GcReport report_;
};

Status Collector::ReportProgress() {
  if (!options_.progress || options_.progress(done_, total_)) return {};
  return Fail(Code::kCancelled, "cancelled");
}

// The time in a damaged record is unknown, so the time at which the object was stored is used. The
// two differ little, because no record is written twice.
bool Collector::IsDamagedAndAbandoned(const Error& error, const objects::ObjectInfo& object) const {
  if (error.code != Code::kDataLoss || !object.put_unix_s) return false;
  const int64_t age_s = UnixNowNs() / 1'000'000'000 - *object.put_unix_s;
  return age_s >= std::chrono::ceil<std::chrono::seconds>(options_.abandoned).count();
}

template <class Read>
Status Collector::RemoveAbandonedBelow(const char* prefix, ParseRecordKey parse, Read read) {
  STASIS_ASSIGN(const auto objects, repository_.List(prefix, call_));
  for (const auto& object : objects) {
    const auto id = parse(object.key);
    if (!id) {
      NoteUnknown(object.key);
      continue;
    }
    auto record = read(*id);
    if (!record && record.error().code == Code::kNotFound) continue;
    const bool is_abandoned = record ? IsAbandoned(record->written_unix_ns)
                                     : IsDamagedAndAbandoned(record.error(), object);
    if (!record && !is_abandoned) return Fail(std::move(record).error());
    if (!is_abandoned) continue;
    STASIS_TRY(repository_.store().Delete(object.key, call_));
    report_.removed_records += 1;
  }
  return {};
}

Status Collector::RemoveAbandoned() {
  STASIS_TRY(RemoveAbandonedBelow(kPendingPrefix, ParsePendingKey, [this](const PushId& push) {
    return repository_.ReadPending(push, call_);
  }));
  return RemoveAbandonedBelow(kCondemnedPrefix, ParseCondemnedKey, [this](const GcId& gc) {
    return repository_.ReadCondemned(gc, call_);
  });
}

Result<Garbage> Collector::List() {
  Garbage garbage;
  STASIS_ASSIGN(const auto packs, repository_.List(kPacksPrefix, call_));
  for (const auto& object : packs) {
    if (garbage.packs.size() >= kMaxImagePacks) break;  // a later gc continues
    if (const auto pack = ParsePackKey(object.key)) {
      if (MayDelete(pack->push)) garbage.packs.emplace(*pack, object.bytes);
    } else {
      NoteUnknown(object.key);
    }
  }
  STASIS_ASSIGN(const auto indexes, repository_.List(kIndexPrefix, call_));
  for (const auto& object : indexes) {
    if (const auto key = ParseIndexKey(object.key)) {
      if (MayDelete(key->push)) garbage.indexes[key->push].emplace(object.key, object.bytes);
    } else {
      NoteUnknown(object.key);
    }
  }
  return garbage;
}

// Removes from `garbage` every object that pushes need. A pending record that has disappeared is
// skipped: it was removed after its image had become visible, or because the push failed.
Status Collector::ReadPending(Garbage& garbage) {
  report_.pending = 0;
  STASIS_ASSIGN(const auto pending, repository_.List(kPendingPrefix, call_));
  for (const auto& object : pending) {
    const auto push = ParsePendingKey(object.key);
    if (!push) continue;
    auto record = repository_.ReadPending(*push, call_);
    if (!record) {
      if (record.error().code == Code::kNotFound) continue;
      return Fail(std::move(record).error());
    }
    report_.pending += 1;
    References needed;
    for (const PackId& pack : record->packs) needed.Add(pack);
    garbage.Spare(needed);
    for (const PushId& own : record->own) garbage.SparePush(own);
  }
  return {};
}

// Removes from `garbage` every object that images need.
Status Collector::ReadImages(Garbage& garbage) {
  report_.images = 0;
  STASIS_ASSIGN(const auto images, repository_.List(kImagesPrefix, call_));
  for (const auto& object : images) {
    const auto name = ParseImageKey(object.key);
    if (!name) {
      NoteUnknown(object.key);
      continue;
    }
    auto image = repository_.ReadImage(*name, call_);
    if (!image) {
      if (image.error().code == Code::kNotFound) continue;
      return Fail(std::move(image).error());
    }
    report_.images += 1;
    References needed;
    image->AddTo(needed);
    garbage.Spare(needed);
  }
  return {};
}

Status Collector::Condemn(const Garbage& garbage) {
  Condemned condemned;
  condemned.written_unix_ns = UnixNowNs();
  for (const auto& [pack, bytes] : garbage.packs) condemned.packs.push_back(pack);
  for (const auto& [push, keys] : garbage.indexes) condemned.indexes.push_back(push);
  // Write the record under a new name: another gc may consider the earlier one abandoned and be
  // about to delete it.
  const std::optional<GcId> before = id_;
  STASIS_ASSIGN(id_, GcId::Random());
  clock_.Written();
  STASIS_TRY(repository_.Write(RecordKind::kCondemned, CondemnedKey(*id_),
                               EncodeCondemned(condemned), call_));
  if (before) STASIS_TRY(repository_.store().Delete(CondemnedKey(*before), call_));
  return {};
}

Status Collector::SecondLook(Garbage& garbage) {
  STASIS_TRY(ReadPending(garbage));
  return ReadImages(garbage);
}

Status Collector::Delete(const std::string& key, uint64_t bytes) {
  STASIS_TRY(ReportProgress());
  may_still_delete_ = true;
  STASIS_TRY(repository_.store().Delete(key, call_));
  may_still_delete_ = false;
  done_ += 1;
  report_.deleted_bytes += bytes;
  return {};
}

// Deletes the objects listed in `garbage` as long as the gc's record is valid, and removes them
// from the list. Deletes indexes of names before those of places, so that no push finds units
// without a place.
Status Collector::DeleteWhileValid(Garbage& garbage) {
  while (!garbage.packs.empty() && clock_.IsValid()) {
    const auto [pack, bytes] = *garbage.packs.begin();
    STASIS_TRY(Delete(PackKey(pack), bytes));
    report_.deleted_packs += 1;
    garbage.packs.erase(pack);
  }
  while (!garbage.indexes.empty() && clock_.IsValid()) {
    const auto index = garbage.indexes.begin();
    for (const auto& [key, bytes] : index->second) STASIS_TRY(Delete(key, bytes));
    garbage.indexes.erase(index);
  }
  return {};
}

// Deletes all garbage. If that takes so long that other processes could consider the gc's record
// abandoned, condemns the rest under a new record and looks for references again.
Status Collector::DeleteAll(Garbage& garbage) {
  while (!garbage.empty()) {
    STASIS_TRY(Condemn(garbage));
    STASIS_TRY(SecondLook(garbage));
    total_ = done_ + garbage.packs.size();
    for (const auto& [push, keys] : garbage.indexes) total_ += keys.size();
    STASIS_TRY(DeleteWhileValid(garbage));
  }
  return {};
}

Result<GcReport> Collector::Run() {
  const Stopwatch watch;
  const objects::Counters before = repository_.store().counters();
  STASIS_TRY(repository_.store().CheckLists());
  if (!options_.only) STASIS_TRY(RemoveAbandoned());
  STASIS_ASSIGN(Garbage garbage, List());
  STASIS_TRY(ReadPending(garbage));
  STASIS_TRY(ReadImages(garbage));
  if (!garbage.empty()) {
    const Status status = DeleteAll(garbage);
    if (!may_still_delete_ && id_) {
      STASIS_TRY(repository_.store().Delete(CondemnedKey(*id_), call_));
    }
    STASIS_TRY(status);
  }
  if (!options_.only) {
    STASIS_ASSIGN(report_.leftovers,
                  repository_.store().RemoveLeftovers(
                      std::chrono::ceil<std::chrono::seconds>(options_.abandoned), call_));
  }
  report_.unknown.assign(unknown_.begin(), unknown_.end());
  const objects::Counters after = repository_.store().counters();
  report_.requests = after.requests - before.requests;
  report_.retries = after.retries - before.retries;
  report_.sent_bytes = after.bytes_sent - before.bytes_sent;
  report_.received_bytes = after.bytes_received - before.bytes_received;
  report_.seconds = watch.Seconds();
  return std::move(report_);
}

}  // namespace

Result<GcReport> CollectGarbage(const Repository& repository, const GcOptions& options) {
  return Annotate(Collector(repository, options).Run(),
                  "collect garbage in " + repository.store().Name());
}

}  // namespace stasis::repository
