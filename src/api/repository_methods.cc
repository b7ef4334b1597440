// The methods for repositories: add, list, check and remove them; push and pull images.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "api/error_message.h"
#include "api/job_history.h"
#include "api/local_images.h"
#include "api/methods.h"
#include "api/remote_images.h"
#include "api/repository_choice.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "base/operation_id.h"
#include "base/secret.h"
#include "containers/reference.h"
#include "repository/layout.h"
#include "repository/pull.h"
#include "repository/pulled_origin.h"
#include "repository/push.h"
#include "store/codec.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/unit_names.h"
#include "store/user_limit.h"

namespace stasis::api {
namespace {

using repository::OpenedRepository;
using repository::Registration;

constexpr std::chrono::seconds kCheckTimeout{60};

Registration FromMessage(const v1::Repository& message) {
  Registration r;
  r.name = message.name();
  r.location = message.location();
  r.endpoint = message.endpoint();
  r.region = message.region();
  r.addressing = message.addressing();
  r.ca_file = message.ca_file();
  r.profile = message.profile();
  r.max_bytes_per_second = message.max_bytes_per_second();
  r.encrypted = true;
  r.trusted = message.trusted();
  return r;
}

// Returns the codec of a new pack. Refuses "auto", which would need to know the speed of the
// network.
Result<store::Codec> CodecOf(const std::string& asked) {
  if (asked.empty()) return store::Codec::kNone;
  STASIS_ASSIGN(const store::Compression compression, store::ParseCompression(asked));
  switch (compression) {
    case store::Compression::kLz4:
      return store::Codec::kLz4;
    case store::Compression::kZstd:
      return store::Codec::kZstd;
    case store::Compression::kNone:
      return store::Codec::kNone;
    case store::Compression::kAuto:
      break;
  }
  return FailUsage("a push has no compression \"auto\"", "use none, lz4 or zstd");
}

// Returns whether this installation wrote the indexes of the image's packs, so that they need not
// be computed again.
Result<bool> WroteIndex(const Call& call, const store::ImageReader& image) {
  STASIS_ASSIGN(const auto keys, repository::IndexedHere(call.paths));
  return std::any_of(keys.begin(), keys.end(), [&](const store::OriginKey& key) {
    return image.OriginBy(&key) == store::Origin::kOwn;
  });
}

// Fills in the fields that a push and a pull have in common.
template <class Report>
v1::OperationEvent ToEvent(const std::string& verb, const std::string& target,
                           const std::string& name, const OpenedRepository& opened,
                           const Report& report) {
  v1::OperationEvent event;
  v1::OperationResult& result = *event.mutable_result();
  result.set_verb(verb);
  result.set_operation(OperationId());
  result.set_target(Utf8(target));
  result.set_image_bytes(report.image_bytes);
  result.set_total_s(report.seconds);
  for (const std::string& note : report.notes) result.add_notes(Utf8(note));
  v1::Transfer& transfer = *result.mutable_transfer();
  transfer.set_repository(Utf8(opened.registration().name));
  transfer.set_location(Utf8(opened.registration().location));
  transfer.set_name(Utf8(name));
  transfer.set_requests(report.requests);
  transfer.set_retries(report.retries);
  v1::PhaseReport& phase = *result.add_phases();
  phase.set_name(verb);
  phase.set_seconds(report.seconds);
  return event;
}

// One step of CheckRepository.
struct Probe {
  const char* name;
  std::function<Status()> run;
  bool always = false;  // even if an earlier step has failed
};

// Writes, reads, lists and deletes an object that is not part of the format. A check that is killed
// leaves the object behind, which is harmless. `opened` must outlive the steps.
Result<std::vector<Probe>> ProbesOf(const OpenedRepository& opened,
                                    const objects::CallOptions& limits) {
  objects::ObjectStore* const store = &opened.repository().store();
  STASIS_ASSIGN(const Id128 random, Id128::Random());
  const std::string key = "check/" + random.Hex(), content = random.Hex();
  const auto write = [=]() -> Status {
    const std::string_view parts[] = {content};
    return store->Put(key, parts, limits);
  };
  const auto read = [=]() -> Status {
    STASIS_ASSIGN(const std::string got, store->GetWhole(key, content.size(), limits));
    if (got == content) return {};
    return Fail(Code::kDataLoss,
                "the object that was just written has different contents when it is read");
  };
  const auto list = [=]() -> Status {
    STASIS_ASSIGN(const auto page, store->List(key, "", 1, limits));
    if (!page.objects.empty() && page.objects[0].key == key) return {};
    return Fail(Code::kFailedPrecondition,
                "a list of objects does not contain the one that was just written",
                "gc needs an object store whose lists are consistent");
  };
  const auto remove = [=] { return store->Delete(key, limits); };
  return std::vector<Probe>{
      {"write", write}, {"read", read}, {"list", list}, {"delete", remove, true}};
}

// Adds the step to the answer. Returns whether it has succeeded.
bool RunProbe(const Probe& probe, v1::CheckRepositoryResponse& response) {
  const Stopwatch watch;
  const Status done = probe.run();
  auto& step = *response.add_steps();
  step.set_name(probe.name);
  step.set_seconds(watch.Seconds());
  if (!done) *step.mutable_error() = EncodeError(done.error());
  return done.has_value();
}

}  // namespace

Result<v1::AddRepositoryResponse> AddRepository(Call& call,
                                                const v1::AddRepositoryRequest& request) {
  Registration registration = FromMessage(request.repository());
  registration.encrypted = !request.plain();
  STASIS_TRY(CheckAbsolute("the certificate file", registration.ca_file));
  if (!repository::IsRepositoryName(registration.name)) {
    // FindRegistration returns the error for an invalid name.
    STASIS_TRY(repository::FindRegistration(call.paths, registration.name));
  }
  if (auto taken = repository::FindRegistration(call.paths, registration.name); taken) {
    return Fail(
        Code::kAlreadyExists,
        fmt::format("there is a repository {} already, at {}", taken->name, taken->location),
        fmt::format("choose another name, or run `stasis repo remove {}` first", taken->name));
  }
  auto created = OpenedRepository::Create(registration, AccessOf(call));
  if (!created) {
    return Fail(
        std::move(created).error().WithContext("cannot add repository " + registration.name));
  }
  STASIS_TRY(repository::AddRegistration(call.paths, registration));
  v1::AddRepositoryResponse response;
  *response.mutable_repository() = ToMessage(registration);
  response.set_created(created->created);
  response.set_warning(Utf8(created->warning));
  if (created->master_key_id) response.set_key_id(created->master_key_id->Hex());
  return response;
}

Result<v1::ListRepositoriesResponse> ListRepositories(Call& call,
                                                      const v1::ListRepositoriesRequest&) {
  STASIS_ASSIGN(const auto all, repository::ListRegistrations(call.paths));
  v1::ListRepositoriesResponse response;
  for (const Registration& one : all) *response.add_repositories() = ToMessage(one);
  return response;
}

Result<v1::CheckRepositoryResponse> CheckRepository(Call& call,
                                                    const v1::CheckRepositoryRequest& request) {
  v1::CheckRepositoryResponse response;
  STASIS_ASSIGN(const Registration registration, FindRepository(call, request.repository()));
  *response.mutable_repository() = ToMessage(registration);
  const objects::CallOptions limits{Deadline::In(kCheckTimeout), call.stop};
  std::unique_ptr<OpenedRepository> opened;
  const auto open = [&]() -> Status {
    STASIS_ASSIGN(opened, OpenRepository(call, request.repository(), limits.deadline));
    return {};
  };
  bool ok = RunProbe({"open", open}, response);
  if (opened != nullptr) {
    STASIS_ASSIGN(const auto probes, ProbesOf(*opened, limits));
    for (const Probe& probe : probes) {
      // The written object is deleted even if a step has failed.
      if (ok || probe.always) ok = RunProbe(probe, response) && ok;
    }
    if (const Status lists = opened->repository().store().CheckLists(); !lists) {
      response.set_warning(Utf8(lists.error().ToString() + "; " + lists.error().hint));
    }
  }
  response.set_ok(ok);
  return response;
}

Result<std::unique_ptr<OpenedRepository>> OpenForDump(Call& call,
                                                      const v1::RepositoryChoice& choice,
                                                      const std::string& target,
                                                      const std::string& name, bool keeps_local) {
  if (containers::IsReference(target)) {
    return FailUsage("the image of a container cannot be pushed to a repository yet",
                     "dump it without --to, and copy the archive");
  }
  const objects::CallOptions limits{Deadline::In(kCheckTimeout), call.stop};
  STASIS_ASSIGN(auto opened, OpenRepository(call, choice, limits.deadline));
  if (Status lists = opened->repository().store().CheckLists(); !lists && !keeps_local) {
    Error error = std::move(lists).error();
    error.message +=
        ": a gc may not see the new image and may then delete its data, and the local image would "
        "be deleted";
    error.hint += ", or add --keep-local";
    return Fail(std::move(error));
  }
  STASIS_ASSIGN(const auto probes, ProbesOf(*opened, limits));
  Status checked;
  for (const Probe& probe : probes) {
    if (!checked && !probe.always) continue;
    Status done = probe.run();
    if (checked) checked = std::move(done);
  }
  STASIS_TRY(std::move(checked));
  STASIS_TRY(repository::ReadAllCondemned(opened->repository(), limits));
  if (name.empty()) return opened;
  STASIS_ASSIGN(const bool exists, opened->repository().Exists(repository::ImageKey(name), limits));
  if (!exists) return opened;
  return Fail(Code::kAlreadyExists, Domain::kImage, 0,
              fmt::format("{} has an image {} already", opened->registration().name, name),
              "choose another name with --name");
}

Result<v1::RemoveRepositoryResponse> RemoveRepository(Call& call,
                                                      const v1::RemoveRepositoryRequest& request) {
  STASIS_TRY(repository::RemoveRegistration(call.paths, request.name()));
  return v1::RemoveRepositoryResponse();
}

Result<v1::OperationEvent> PushTo(Call& call, const OpenedRepository& opened,
                                  const v1::PushImageRequest& request) {
  STASIS_ASSIGN(const std::string path, ImagePath(call, request.store(), request.image()));
  STASIS_ASSIGN(const auto reader, store::ImageReader::Open(path));
  const std::string& own_name = reader->path().substr(reader->path().rfind('/') + 1);
  const std::string name = request.name().empty() ? own_name : request.name();
  STASIS_ASSIGN(const BlockSecret secret, NamingSecretOf(call.paths));
  const store::UnitNames names(secret);
  repository::PushOptions options;
  options.names = &names;
  STASIS_ASSIGN(options.trusts_index, WroteIndex(call, *reader));
  STASIS_ASSIGN(options.codec, CodecOf(request.compress()));
  options.progress = BytesProgressOf(call, "push");
  options.stop = call.stop;
  STASIS_ASSIGN(const auto report, repository::Push(opened.repository(), *reader, name, options));
  v1::OperationEvent event = ToEvent("push", request.image(), name, opened, report);
  event.mutable_result()->set_image(Utf8(reader->path()));
  event.mutable_result()->mutable_phases(0)->set_bytes(report.new_bytes);
  v1::Transfer& transfer = *event.mutable_result()->mutable_transfer();
  transfer.set_moved_bytes(report.new_bytes);
  transfer.set_known_bytes(report.known_bytes);
  transfer.set_sent_bytes(report.sent_bytes);
  transfer.set_repairs(report.repairs);
  RecordCopy(call.paths, reader->path(), opened.registration(), name, *event.mutable_result());
  return event;
}

Result<v1::OperationEvent> PushImage(Call& call, const v1::PushImageRequest& request) {
  // A wrong name is reported before any request is sent.
  STASIS_TRY(ImagePath(call, request.store(), request.image()));
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  return PushTo(call, *opened, request);
}

Result<v1::OperationEvent> PullImage(Call& call, const v1::PullImageRequest& request) {
  STASIS_ASSIGN(const std::string store, StoreOf(call, request.store()));
  const std::string& name = request.image();
  const std::string& local_name = request.name().empty() ? name : request.name();
  STASIS_TRY(store::CheckImageName(name));
  STASIS_TRY(store::CheckImageName(local_name));
  STASIS_TRY(store::CheckImageLimit(store, call.settings.most_image_bytes));
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  STASIS_ASSIGN(const BlockSecret naming, NamingSecretOf(call.paths));
  const store::UnitNames names(naming);
  STASIS_ASSIGN(repository::PullOptions options, PullOptionsOf(call, *opened, names));
  options.progress = BytesProgressOf(call, "pull");
  STASIS_ASSIGN(const auto report,
                repository::Pull(opened->repository(), name, store, local_name, options));
  v1::OperationEvent event = ToEvent("pull", name, name, *opened, report);
  event.mutable_result()->set_image(Utf8(report.path));
  event.mutable_result()->mutable_phases(0)->set_bytes(report.fetched_bytes);
  v1::Transfer& transfer = *event.mutable_result()->mutable_transfer();
  transfer.set_moved_bytes(report.fetched_bytes);
  transfer.set_known_bytes(report.shared_bytes);
  transfer.set_received_bytes(report.received_bytes);
  return event;
}

}  // namespace stasis::api
