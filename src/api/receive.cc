// The receiving side of a migration.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "api/error_message.h"
#include "api/migrate.h"
#include "api/migration_link.h"
#include "api/operate.h"
#include "api/repository_choice.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/secret.h"
#include "gpu_state/services.h"
#include "migration/store_server.h"
#include "objects/folder_store.h"
#include "operations/data_ahead.h"
#include "operations/restore.h"
#include "repository/range_stream.h"
#include "repository/sealing.h"
#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/unit_names.h"

namespace stasis::api {
namespace {

using std::chrono::seconds;

constexpr seconds kReplyTime{60};
constexpr seconds kGreetingTime{60};
constexpr seconds kRegisterTime{300};  // terabytes at 10 GB/s
// The other host reports the outcome as unknown after more than this time (docs/migration.md), so a
// later order must not start the program.
constexpr seconds kGoTime{60};
// After this time without a message the other host counts as lost. The time is long because the
// other host may be dumping a program of hundreds of gigabytes.
constexpr seconds kSilence{4 * 3600};
constexpr size_t kMostEarlierLogBytes = 1 << 20;

// The objects that arrive on the connection, in a hidden folder of the store of images. A sweep
// removes the folder if this process is killed.
class Incoming {
 public:
  static Result<std::unique_ptr<Incoming>> Begin(const std::string& store) {
    std::unique_ptr<Incoming> incoming(new Incoming(store));
    STASIS_TRY(MakeDirs(store));
    STASIS_ASSIGN(incoming->hidden_, store::MakeHidden(store, "migration", store::kPartial));
    STASIS_ASSIGN(incoming->objects_,
                  objects::FolderStore::Open(store + "/" + incoming->hidden_.name,
                                             objects::Durability::kTemporary));
    return incoming;
  }
  ~Incoming() {
    objects_.reset();
    if (hidden_.name.empty()) return;
    if (auto folder = store::OpenFolder(store_)) {
      (void)store::RemoveHidden(folder->get(), store_, hidden_.name);
    }
  }
  Incoming(const Incoming&) = delete;

  objects::ObjectStore& objects() { return *objects_; }

 private:
  explicit Incoming(std::string store) : store_(std::move(store)) {}
  const std::string store_;
  store::Hidden hidden_;
  std::unique_ptr<objects::FolderStore> objects_;
};

class MigrationReceiver {
 public:
  MigrationReceiver(Call& call, MigrationLink& link)
      : call_(call), link_(link), ahead_(call.paths, call.settings.most_arena_bytes) {}
  Status Serve();

 private:
  objects::CallOptions Limits(seconds time) const { return {Deadline::In(time), call_.stop}; }
  Status Handle(migration::Frame& frame);
  Status Begin(const migration::Frame& frame);
  Status Check(const migration::Frame& frame);
  Status Load(const migration::Frame& frame);
  Result<v1::MigrationLoaded> LoadAhead(const std::string& image, const std::stop_token& stop);
  Result<std::vector<std::string>> RegisterArenas(gpu_state::Services& services,
                                                  const store::Manifest& manifest,
                                                  const std::stop_token& stop);
  Status Restore(const migration::Frame& frame);
  Result<v1::OperationEvent> RestoreImage(const std::string& image, v1::RestoreRequest request,
                                          std::string earlier_log, bool waits);
  Result<const repository::Repository*> Repository();
  Status AwaitGo(plan::PhaseScope& scope);
  Status Answer(MessageKind kind, const google::protobuf::MessageLite& message) {
    return link_.Send(kind, message, Limits(kReplyTime));
  }
  Status AnswerFailed(const Error& error, bool may_run);

  Call& call_;
  MigrationLink& link_;
  v1::MigrationBegin begin_;
  bool begun_ = false;
  std::unique_ptr<Incoming> incoming_;
  std::unique_ptr<repository::OpenedRepository> opened_;  // the repository of --via
  std::unique_ptr<repository::Sealing> sealing_;
  std::optional<repository::Repository> piped_;
  v1::RestoreRequest restore_;  // from the last kCheck
  operations::DataAhead ahead_;
  std::shared_ptr<const repository::ImageRecord> loaded_;  // the image in ahead_
  bool went_ = false;                                      // the program was allowed to run
  bool runs_here_ = false;                                 // the restore was committed
};

Status MigrationReceiver::AnswerFailed(const Error& error, bool may_run) {
  v1::MigrationFailed failed;
  *failed.mutable_error() = EncodeError(error);
  failed.set_may_run(may_run);
  return Answer(MessageKind::kFailed, failed);
}

v1::MigrationBegun ThisHost() {
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  v1::MigrationBegun begun;
  begun.set_stasis_version(STASIS_VERSION);
  begun.set_host(Utf8(name));
  return begun;
}

Status MigrationReceiver::Begin(const migration::Frame& frame) {
  if (begun_) return Fail(Code::kInvalidArgument, "the other host began the migration twice");
  STASIS_TRY(ParseMessage(frame, begin_));
  if (begin_.stasis_version() != STASIS_VERSION) {
    return Fail(Code::kFailedPrecondition,
                fmt::format("this host has Stasis {}, and {} has {}", STASIS_VERSION,
                            Utf8(begin_.from()), Utf8(begin_.stasis_version())),
                "install the same version on both hosts");
  }
  if (begin_.via().empty()) {
    STASIS_ASSIGN(incoming_, Incoming::Begin(call_.paths.images()));
  } else {
    v1::RepositoryChoice choice;
    choice.set_name(begin_.via());
    STASIS_ASSIGN(opened_, OpenRepository(call_, choice, Deadline::In(kReplyTime)));
    const auto& id = opened_->repository().info().id.bytes;
    if (begin_.via_id() != std::string(id.begin(), id.end())) {
      return Fail(Code::kFailedPrecondition, Domain::kImage, 0,
                  fmt::format("the repository {} is not the same on this host and on {}",
                              begin_.via(), Utf8(begin_.from())),
                  "add the same repository under one name on both hosts");
    }
  }
  begun_ = true;
  return Answer(MessageKind::kBegun, ThisHost());
}

Result<const repository::Repository*> MigrationReceiver::Repository() {
  if (opened_) return &opened_->repository();
  if (!piped_) {
    STASIS_ASSIGN(auto info, repository::ReadRepositoryInfo(incoming_->objects(), {}));
    if (info.is_sealed) return Fail(Code::kInvalidArgument, "the images are encrypted");
    sealing_ = repository::PlainSealing();
    piped_.emplace(incoming_->objects(), std::move(info), *sealing_);
  }
  return &*piped_;
}

// The image is trusted without checks of its origin: the sender was able to start this process, so
// it can run any program as this user anyway.
Result<v1::OperationEvent> MigrationReceiver::RestoreImage(const std::string& image,
                                                           v1::RestoreRequest request,
                                                           std::string earlier_log, bool waits) {
  STASIS_TRY(store::CheckImageName(image));
  STASIS_ASSIGN(const repository::Repository* repository, Repository());
  STASIS_ASSIGN(const BlockSecret naming, NamingSecretOf(call_.paths));
  const store::UnitNames names(naming);
  repository::PullOptions pull;
  pull.names = &names;
  pull.write.packs.bytes = call_.settings.pack_bytes;
  pull.stop = call_.stop;
  request.set_source(fmt::format("{} from {}", Utf8(begin_.job()), Utf8(begin_.from())));
  request.set_trust_image(true);
  if (request.gpu_map().empty()) request.set_gpu_map("auto");
  request.mutable_options()->set_dry_run(!waits);
  StreamedSource source{
      *repository, image, request.source(), std::move(pull), std::move(earlier_log), {}, {}};
  if (waits) {
    source.before_adopt = [this](plan::PhaseScope& scope) { return AwaitGo(scope); };
    source.earlier = std::move(loaded_);
    source.ahead = &ahead_;
  }
  return RestoreStreamed(call_, request, std::move(source));
}

Status MigrationReceiver::AwaitGo(plan::PhaseScope& scope) {
  // For a program without a GPU, the deadline of `scope` is that of the whole restore.
  const objects::CallOptions limits{Deadline::Sooner(scope.deadline(), Deadline::In(kGoTime)),
                                    call_.stop};
  STASIS_TRY(link_.Send(MessageKind::kReady, ThisHost(), limits));
  v1::MigrationBegun go;
  STASIS_TRY(Annotate(link_.Await(MessageKind::kGo, go, limits),
                      "wait for the other host to stop the program"));
  went_ = true;
  return {};
}

Status MigrationReceiver::Check(const migration::Frame& frame) {
  v1::MigrationCheck check;
  STASIS_TRY(ParseMessage(frame, check));
  restore_ = check.restore();
  STASIS_TRY(RestoreImage(check.image(), check.restore(), {}, /*waits=*/false));
  return Answer(MessageKind::kBegun, ThisHost());
}

Status MigrationReceiver::Load(const migration::Frame& frame) {
  v1::MigrationLoad load;
  STASIS_TRY(ParseMessage(frame, load));
  STASIS_TRY(store::CheckImageName(load.image()));
  // The other host sends nothing before the answer. If the connection closes meanwhile, stop the
  // load, because nothing needs it any more.
  STASIS_ASSIGN(const auto closed, link_.channel().StopWhenClosed());
  std::stop_source stop;
  const auto request_stop = [&] { stop.request_stop(); };
  const std::stop_callback when_closed(closed->token(), request_stop);
  const std::stop_callback when_cancelled(call_.stop, request_stop);
  STASIS_ASSIGN(const v1::MigrationLoaded loaded, LoadAhead(load.image(), stop.get_token()));
  return Answer(MessageKind::kLoaded, loaded);
}

Result<v1::MigrationLoaded> MigrationReceiver::LoadAhead(const std::string& image,
                                                         const std::stop_token& stop) {
  STASIS_ASSIGN(const repository::Repository* repository, Repository());
  STASIS_ASSIGN(const auto stream,
                repository::RangeStream::Open(*repository, image, {Deadline::In(kSilence), stop}));
  const bool checks_memory = !restore_.options().ignore_memory();
  if (checks_memory) {
    STASIS_TRY(Annotate(ahead_.CheckMemory(stream->record()->manifest),
                        "for the CPU memory and the GPU memory"));
  }
  stream->SetEarlier(std::exchange(loaded_, nullptr));
  STASIS_TRY(ahead_.Load(stream->record()->manifest, *stream,
                         [&](uint64_t) { return !stop.stop_requested(); }));
  loaded_ = stream->record();
  auto services = gpu_state::MakeServices(call_.paths, call_.settings, STASIS_VERSION,
                                          /*keep_arenas=*/false);
  v1::MigrationLoaded answer;
  // If this fails, the restore registers the arenas itself, which makes the pause longer.
  const auto notes = RegisterArenas(services, loaded_->manifest, stop);
  if (!notes && stop.stop_requested()) return Fail(notes.error());
  if (!notes) {
    answer.add_notes(
        Utf8("the GPU's mover did not register the GPU memory ahead, so the pause "
             "includes that: " +
             notes.error().ToString()));
  } else {
    for (const std::string& note : *notes) answer.add_notes(Utf8(note));
  }
  // After the last load the other host stops the program, so this is the last check before the
  // pause. Others may have taken memory during the load.
  if (checks_memory) {
    STASIS_TRY(Annotate(operations::CheckCpuMemory(services, loaded_->manifest),
                        "for the CPU memory, beside the GPU memory"));
  }
  return answer;
}

// Does nothing, and says nothing, if the settings let no mover stay after this call:
// `restore_cold_bytes` in the account shows what the restore has registered.
Result<std::vector<std::string>> MigrationReceiver::RegisterArenas(gpu_state::Services& services,
                                                                   const store::Manifest& manifest,
                                                                   const std::stop_token& stop) {
  if (call_.settings.helper_idle_s <= 0 || !call_.settings.cuda_library.empty()) {
    return std::vector<std::string>();
  }
  operations::RestoreOptions restore;
  restore.gpu_map = restore_.gpu_map().empty() ? "auto" : restore_.gpu_map();
  STASIS_ASSIGN(const auto map, operations::ChooseGpus(services, manifest, restore));
  return ahead_.Register(services, map, stop, Deadline::In(kRegisterTime));
}

Status MigrationReceiver::Restore(const migration::Frame& frame) {
  v1::MigrationRestore restore;
  STASIS_TRY(ParseMessage(frame, restore));
  std::string log = restore.earlier_log();
  if (log.size() > kMostEarlierLogBytes) log.erase(0, log.size() - kMostEarlierLogBytes);
  STASIS_ASSIGN(const auto event,
                RestoreImage(restore.image(), restore.restore(), std::move(log), /*waits=*/true));
  runs_here_ = true;
  return Answer(MessageKind::kDone, event);
}

Status MigrationReceiver::Handle(migration::Frame& frame) {
  const auto kind = static_cast<MessageKind>(frame.type);
  if (kind == MessageKind::kBegin) return Begin(frame);
  if (!begun_) return Fail(Code::kInvalidArgument, "the migration has not begun");
  if (kind == MessageKind::kCheck) return Check(frame);
  if (kind == MessageKind::kLoad) return Load(frame);
  if (kind == MessageKind::kRestore) return Restore(frame);
  return Fail(Code::kInvalidArgument, fmt::format("unknown message {}", frame.type));
}

// Returns true if the other host has closed the connection, which it does at the end and after its
// own errors.
template <class T>
bool IsClosed(const Result<T>& result) {
  return !result && result.error().code == Code::kUnavailable;
}

// Returns true if the error only means that the connection was closed.
bool IsEndOfConnection(const Error& error) {
  return (error.code == Code::kUnavailable || error.code == Code::kCancelled) && !error.not_undone;
}

Status MigrationReceiver::Serve() {
  for (;;) {
    auto frame = link_.channel().Receive({}, Limits(kSilence));
    if (!frame) {
      if (IsClosed(frame)) return {};
      return Fail(std::move(frame).error());
    }
    if (incoming_) {
      STASIS_ASSIGN(const bool served,
                    migration::ServeObjectRequest(incoming_->objects(), *frame, link_.channel(),
                                                  Limits(kSilence)));
      if (served) continue;
    }
    Status handled = Handle(*frame);
    if (handled) continue;
    Status answered =
        AnswerFailed(handled.error(), runs_here_ || (went_ && handled.error().not_undone));
    // An error that cannot be sent is reported here, except the loss of the connection itself.
    if (IsClosed(answered)) return IsEndOfConnection(handled.error()) ? Status() : handled;
    STASIS_TRY(std::move(answered));
  }
}

}  // namespace

Status ReceiveMigration(Call& call, UniqueFd input, UniqueFd output) {
  STASIS_ASSIGN(const auto link, MigrationLink::Open(std::move(input), std::move(output),
                                                     {Deadline::In(kGreetingTime), call.stop}));
  call.emit = nullptr;
  return MigrationReceiver(call, *link).Serve();
}

}  // namespace stasis::api
