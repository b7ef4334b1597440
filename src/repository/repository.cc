#include "repository/repository.h"

#include <fmt/format.h>

namespace stasis::repository {

namespace {

// A list that does not end would otherwise fill the host memory.
constexpr size_t kMaxListed = 20'000'000;

// Adds a hint to the error of a damaged record of a push or a gc.
template <class T>
Result<T> WithNextStep(Result<T> record, const char* process) {
  if (!record && record.error().code == Code::kDataLoss) {
    record.error().hint = fmt::format(
        "`stasis image gc` with this repository removes the record when it is a day old; it may be "
        "deleted by hand if no {} of this repository has run on any host for an hour",
        process);
  }
  return record;
}

// Adds the object's name to an error of decoding it.
template <class T>
Result<T> Named(Result<T> decoded, const std::string& what) {
  if (!decoded && decoded.error().code == Code::kDataLoss) {
    decoded.error().message = what + " is damaged: " + decoded.error().message;
  }
  return decoded;
}

}  // namespace

Result<RepositoryInfo> CreateRepository(objects::ObjectStore& store, bool is_sealed,
                                        const std::string& parameters,
                                        const objects::CallOptions& call) {
  if (parameters.size() > kMaxParameterBytes) {
    return Fail(Code::kInternal, "the parameters of the sealing are too long");
  }
  STASIS_ASSIGN(const objects::ListPage page, store.List("", "", 1, call));
  if (!page.objects.empty()) {
    if (ReadRepositoryInfo(store, call)) {
      return Fail(Code::kAlreadyExists, Domain::kImage, 0,
                  store.Name() + " is a repository already");
    }
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} is not empty: it contains {}", store.Name(), page.objects[0].key),
                "Choose a prefix without objects.");
  }
  RepositoryInfo info;
  STASIS_ASSIGN(info.id, Id128::Random());
  info.is_sealed = is_sealed;
  info.parameters = parameters;
  const std::string record = EncodeRecord({RecordKind::kRepo, info.id, kRepoKey}, EncodeInfo(info));
  const std::string_view parts[] = {record};
  STASIS_TRY(store.Put(kRepoKey, parts, call));
  return info;
}

Result<RepositoryInfo> ReadRepositoryInfo(objects::ObjectStore& store,
                                          const objects::CallOptions& call) {
  const std::string what = store.Name() + "/" + kRepoKey;
  auto record = store.GetWhole(kRepoKey, uint64_t{2} * kMaxParameterBytes, call);
  if (!record) {
    if (record.error().code != Code::kNotFound) return Fail(std::move(record).error());
    return Fail(Code::kNotFound, Domain::kImage, 0, store.Name() + " is not a Stasis repository",
                "`stasis repo add NAME LOCATION` creates one there.");
  }
  STASIS_ASSIGN(const DecodedRecord decoded, DecodeRecord(*record, what));
  if (decoded.header.kind != RecordKind::kRepo || decoded.header.key != kRepoKey) {
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                what + " contains another object of a repository");
  }
  return Named(DecodeInfo(decoded.header.repository, decoded.body), what);
}

Result<std::string> Repository::Read(RecordKind kind, const std::string& key,
                                     const objects::CallOptions& call) const {
  const std::string what = NameOf(key);
  STASIS_ASSIGN(const std::string sealed, store_.GetWhole(key, kMaxRecordBytes, call));
  STASIS_ASSIGN(const std::string record, sealing_.OpenObject(key, sealed, what));
  STASIS_ASSIGN(const DecodedRecord decoded, DecodeRecord(record, what));
  const RecordHeader& header = decoded.header;
  if (header.kind != kind || header.repository != info_.id || header.key != key) {
    return Fail(
        Code::kDataLoss, Domain::kImage, 0,
        fmt::format("{} contains another object, which was written as {} of {}", what, header.key,
                    header.repository == info_.id ? "this repository" : "another repository"));
  }
  return std::string(decoded.body);
}

Status Repository::Write(RecordKind kind, const std::string& key, std::string_view body,
                         const objects::CallOptions& call) const {
  const std::string record = EncodeRecord({kind, info_.id, key}, body);
  STASIS_ASSIGN(const std::string sealed, sealing_.SealObject(key, record));
  if (sealed.size() > kMaxRecordBytes) {
    return Fail(Code::kResourceExhausted, Domain::kImage, 0,
                fmt::format("{} would have {} bytes; at most {} are allowed", NameOf(key),
                            sealed.size(), kMaxRecordBytes));
  }
  const std::string_view parts[] = {sealed};
  return store_.Put(key, parts, call);
}

Result<ImageRecord> Repository::ReadImage(const std::string& name,
                                          const objects::CallOptions& call) const {
  const std::string key = ImageKey(name);
  STASIS_ASSIGN(const std::string body, Read(RecordKind::kImage, key, call));
  return Named(DecodeImage(body), NameOf(key));
}

Result<std::vector<PackTable>> Repository::ReadPlace(const PushId& push,
                                                     const objects::CallOptions& call) const {
  const std::string key = PlaceKey(push);
  STASIS_ASSIGN(const std::string body, Read(RecordKind::kPlace, key, call));
  return Named(DecodePlace(body), NameOf(key));
}

Result<NamesIndex> Repository::ReadNames(const PushId& push,
                                         const objects::CallOptions& call) const {
  const std::string key = NamesKey(push);
  STASIS_ASSIGN(const std::string body, Read(RecordKind::kNames, key, call));
  return Named(DecodeNames(body), NameOf(key));
}

Result<Pending> Repository::ReadPending(const PushId& push,
                                        const objects::CallOptions& call) const {
  const std::string key = PendingKey(push);
  STASIS_ASSIGN(const std::string body,
                WithNextStep(Read(RecordKind::kPending, key, call), "push"));
  return WithNextStep(Named(DecodePending(body), NameOf(key)), "push");
}

Result<Condemned> Repository::ReadCondemned(const GcId& gc,
                                            const objects::CallOptions& call) const {
  const std::string key = CondemnedKey(gc);
  STASIS_ASSIGN(const std::string body,
                WithNextStep(Read(RecordKind::kCondemned, key, call), "gc"));
  return WithNextStep(Named(DecodeCondemned(body), NameOf(key)), "gc");
}

Result<std::vector<objects::ObjectInfo>> Repository::List(const std::string& prefix,
                                                          const objects::CallOptions& call) const {
  std::vector<objects::ObjectInfo> listed;
  for (;;) {
    const std::string after = listed.empty() ? "" : listed.back().key;
    STASIS_ASSIGN(objects::ListPage page, store_.List(prefix, after, objects::kMaxListLimit, call));
    for (objects::ObjectInfo& object : page.objects) {
      if (!object.key.starts_with(prefix) || object.key <= after) {
        return Fail(Code::kUnavailable, Domain::kImage, 0,
                    fmt::format("{} answered a list of {} with a key that does not belong there",
                                store_.Name(), prefix));
      }
      listed.push_back(std::move(object));
    }
    if (!page.more || page.objects.empty()) return listed;
    if (listed.size() > kMaxListed) {
      return Fail(Code::kResourceExhausted, Domain::kImage, 0,
                  fmt::format("{} has more than {} objects", NameOf(prefix), kMaxListed));
    }
  }
}

Result<bool> Repository::Exists(const std::string& key, const objects::CallOptions& call) const {
  // A key comes before all longer keys that begin with it.
  STASIS_ASSIGN(const objects::ListPage page, store_.List(key, "", 1, call));
  return !page.objects.empty() && page.objects[0].key == key;
}

Result<References> ReadAllCondemned(const Repository& repository,
                                    const objects::CallOptions& call) {
  References condemned;
  STASIS_ASSIGN(const auto records, repository.List(kCondemnedPrefix, call));
  for (const auto& object : records) {
    const auto gc = ParseCondemnedKey(object.key);
    if (!gc) continue;
    auto record = repository.ReadCondemned(*gc, call);
    if (!record) {
      if (record.error().code == Code::kNotFound) continue;
      return Fail(std::move(record).error());
    }
    condemned.packs.insert(record->packs.begin(), record->packs.end());
    condemned.pushes.insert(record->indexes.begin(), record->indexes.end());
  }
  return condemned;
}

}  // namespace stasis::repository
