// The methods for operations. They translate requests into calls of operations/, and the results
// into messages.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <optional>

#include "api/container_operations.h"
#include "api/job_history.h"
#include "api/methods.h"
#include "api/operate.h"
#include "api/remote_images.h"
#include "api/repository_choice.h"
#include "api/result_message.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "api/worker_log.h"
#include "base/caller.h"
#include "base/file.h"
#include "base/log.h"
#include "base/own_path.h"
#include "base/secret.h"
#include "base/size.h"
#include "checks/image_trust.h"
#include "checks/readable.h"
#include "containers/identify.h"
#include "containers/reference.h"
#include "gpu_state/gpu_shards.h"
#include "jobs/store.h"
#include "operations/hold.h"
#include "operations/operations.h"
#include "operations/recover.h"
#include "operations/result.h"
#include "plan/account.h"
#include "repository/streamed_image.h"
#include "store/image_folder.h"
#include "store/store_folder.h"

namespace stasis::api {
namespace {

constexpr double kLongestTimeout = 86400;

// Returns the path of an image. `source` is the path or name of an image, or a job, which means the
// job's latest image.
Result<std::string> FindImage(const Paths& paths, const std::string& source) {
  std::optional<jobs::Job> job;
  if (jobs::IsValidId(source)) {
    auto loaded = jobs::Store(paths.jobs()).Load(source);
    if (!loaded && loaded.error().code != Code::kNotFound) return Fail(std::move(loaded).error());
    if (loaded) job = std::move(*loaded);
    if (job && job->dumped_image && job->dumped_image->starts_with(jobs::kPerhapsMovedTo)) {
      return Fail(Code::kAborted,
                  fmt::format("job {} was perhaps moved to {}", source,
                              job->dumped_image->substr(jobs::kPerhapsMovedTo.size())),
                  "run `stasis ps` there; if the program is not running there, restore its last "
                  "image, which `stasis image ls` shows");
    }
    if (job && jobs::WasMoved(*job)) {
      return Fail(Code::kAborted, fmt::format("job {} was moved to {}", source, *job->dumped_image),
                  "`stasis migrate` there brings it back; `stasis delete " + source +
                      "` removes its record here");
    }
    if (job && !job->checkpoints.empty()) return job->checkpoints.back().image;
    // The shim has recorded a dump whose image could not be added to the job's checkpoints.
    if (job && job->dumped_image) return *job->dumped_image;
  }
  if (source.find('/') != source.npos) STASIS_TRY(CheckAbsolute("the image", source));
  auto path = store::ResolveImage({paths.images()}, source);
  if (path) return AbsolutePath(*path);
  if (path.error().code != Code::kNotFound || !job) return Fail(std::move(path).error());
  return Fail(Code::kNotFound,
              fmt::format("job {} has no checkpoint; there is no image {} either", source, source),
              jobs::HasEnded(job->state) ? "It has ended: `stasis run` starts it again."
                                         : "`stasis dump " + source + "` makes one.");
}

Result<criu::Options> CriuOptionsOf(const v1::CriuOptions& asked) {
  criu::Options options;
  if (!asked.tcp().empty()) {
    STASIS_ASSIGN(options.tcp, criu::ParseTcp(asked.tcp()));
  }
  options.file_locks = asked.file_locks();
  options.link_remap = asked.link_remap();
  options.external.assign(asked.external().begin(), asked.external().end());
  for (const auto& option : asked.others()) STASIS_TRY(options.Set(option));
  return options;
}

// Returns the folder for a suspend's data, or an empty path for host memory. The folder must belong
// to the user, and its path must mean the same in every later command.
Result<std::string> SpillFolder(const v1::SuspendRequest& request,
                                const config::Settings& settings) {
  if (request.no_spill() && !request.spill_dir().empty()) {
    return FailUsage("a spill folder and `no_spill` exclude each other");
  }
  if (request.no_spill()) return std::string();
  const bool typed = !request.spill_dir().empty();
  const std::string path = typed ? request.spill_dir() : settings.spill_dir;
  if (path.empty()) return path;
  const std::string named = (typed ? "--spill " : "the configuration's folders.spill ") + path;
  if (path.front() != '/') {
    return FailUsage(named + " is not an absolute path",
                     "a resume from another directory must find it too");
  }
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return FailErrno(errno, named);
  if (!S_ISDIR(st.st_mode)) return FailUsage(named + " is not a folder");
  if (st.st_uid != ::geteuid()) {
    return Fail(Code::kPermissionDenied, fmt::format("{} belongs to user {}", named, st.st_uid),
                "GPU data must be in a folder where no other user can replace it: use one of your "
                "own folders");
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) return FailErrno(errno, named);
  return path;
}

Result<uint64_t> ArenaLimit(uint64_t asked) {
  constexpr uint64_t kLeast = gpu_state::kLeastArenaLimitBytes;
  if (asked == 0 || (asked >= kLeast && asked <= kMaxSizeBytes)) return asked;
  return FailUsage(fmt::format("--arena-limit {} MiB is not between {} MiB and {} TiB", asked >> 20,
                               kLeast >> 20, kMaxSizeBytes >> 40),
                   "copies between GPU and disk need some buffers");
}

plan::Progress ProgressOf(Call& call) {
  plan::Progress progress;
  if (!call.emit) return progress;
  progress.begin = [&call](const std::string& phase) {
    v1::OperationEvent event;
    event.mutable_phase_begun()->set_name(phase);
    call.emit(event);
  };
  progress.bytes = [&call](const std::string& phase, uint64_t done, uint64_t total) {
    v1::OperationEvent event;
    event.mutable_phase_bytes()->set_name(phase);
    event.mutable_phase_bytes()->set_done(done);
    event.mutable_phase_bytes()->set_total(total);
    call.emit(event);
  };
  progress.end = [&call](const plan::PhaseReport& report) {
    v1::OperationEvent event;
    *event.mutable_phase_ended() = ToMessage(report);
    call.emit(event);
  };
  return progress;
}

using Operation = std::function<Result<operations::OperationResult>(operations::Session&,
                                                                    operations::OperationOptions&)>;

// `what` is the context of errors, for example "dump llama".
Result<v1::OperationEvent> Operate(Call& call, const std::string& verb, const std::string& what,
                                   const v1::OperationOptions& asked, const Operation& operation) {
  auto run = [&]() -> Result<operations::OperationResult> {
    if (std::isnan(asked.timeout_s()) || asked.timeout_s() < 0 ||
        asked.timeout_s() > kLongestTimeout) {
      return FailUsage(fmt::format("a timeout of {} s is not between 0.001 and {:.0f} s",
                                   asked.timeout_s(), kLongestTimeout));
    }
    operations::OperationOptions options;
    const double timeout_s =
        asked.timeout_s() > 0 ? asked.timeout_s() : call.settings.phase_timeout_s;
    options.timeout = config::Milliseconds(timeout_s);
    options.dry_run = asked.dry_run();
    options.ignore_memory = asked.ignore_memory();
    options.progress = ProgressOf(call);
    options.cancelled = call.cancelled;
    // The checks before the plan do not get `options`. They get the caller's timeout from the
    // settings and the cancellation from CancelReadingWhen().
    config::Settings settings = call.settings;
    settings.phase_timeout_s = timeout_s;
    checks::CancelReadingWhen(options.cancelled);
    return operations::RunInSession(
        call.paths, settings, verb, STASIS_VERSION,
        [&](operations::Session& session) { return operation(session, options); });
  };
  STASIS_ASSIGN(const auto result, Annotate(run(), "cannot " + what));
  v1::OperationEvent event;
  *event.mutable_result() = ToMessage(result);
  RecordOperation(call.paths, *event.mutable_result());
  return event;
}

}  // namespace

Status WritePidFile(const std::string& path, pid_t pid) {
  STASIS_ASSIGN(OwnPlace place, FindOwnPlace(path));
  return WriteFileDurably(fmt::format("/proc/self/fd/{}/{}", place.folder.get(), place.name),
                          std::to_string(pid) + "\n");
}

Result<v1::OperationEvent> Suspend(Call& call, const v1::SuspendRequest& request) {
  return Operate(call, "suspend", "suspend " + request.target(), request.options(),
                 [&](auto& session, auto& options) -> Result<operations::OperationResult> {
                   STASIS_ASSIGN(auto target,
                                 ParseTarget(call.paths, request.target(), request.places()));
                   STASIS_ASSIGN(options.spill_dir, SpillFolder(request, call.settings));
                   options.keep_context = request.keep_context();
                   options.assume_unshared = request.assume_unshared();
                   return operations::Suspend(session, target, options);
                 });
}

Result<v1::OperationEvent> Resume(Call& call, const v1::ResumeRequest& request) {
  return Operate(
      call, "resume", "resume " + request.target(), request.options(),
      [&](auto& session, auto& options) -> Result<operations::OperationResult> {
        STASIS_ASSIGN(auto target, ParseTarget(call.paths, request.target(), request.places()));
        return operations::Resume(session, target, {request.gpu_map(), request.gpus()}, options);
      });
}

namespace {

Result<v1::OperationEvent> DumpTarget(Call& call, const v1::DumpRequest& request, bool moves,
                                      operations::HandOver* hand_over) {
  return Operate(
      call, "dump", "dump " + request.target(), request.options(),
      [&](auto& session, auto& options) -> Result<operations::OperationResult> {
        STASIS_ASSIGN(auto target, ParseTarget(call.paths, request.target(), request.places()));
        STASIS_TRY(CheckAbsolute("the folder", request.store()));
        options.assume_unshared = request.assume_unshared();
        STASIS_ASSIGN(options.arena_limit_bytes, ArenaLimit(request.arena_limit_bytes()));
        operations::DumpOptions dump;
        dump.store = request.store().empty() ? call.paths.images() : request.store();
        options.overflow_dir =
            call.settings.spill_dir.empty() ? dump.store : call.settings.spill_dir;
        dump.name = request.name();
        dump.leave_running = request.leave_running();
        dump.full = request.full();
        dump.is_checkpoint = !moves;
        dump.hand_over = hand_over;
        STASIS_ASSIGN(dump.compression,
                      store::ParseCompression(request.compress().empty() ? call.settings.compress
                                                                         : request.compress()));
        STASIS_ASSIGN(dump.criu, CriuOptionsOf(request.criu()));
        return operations::Dump(session, target, dump, options);
      });
}

}  // namespace

Result<v1::OperationEvent> Dump(Call& call, const v1::DumpRequest& request) {
  if (containers::IsReference(request.target())) {
    return Annotate(DumpContainer(call, request), "cannot dump " + request.target());
  }
  return DumpTarget(call, request, /*moves=*/false, nullptr);
}

Result<v1::OperationEvent> DumpToMove(Call& call, const v1::DumpRequest& request,
                                      operations::HandOver* hand_over) {
  return DumpTarget(call, request, /*moves=*/true, hand_over);
}

// Returns the container of a process as the beginning of an image's name, or an empty string.
std::string SubjectOf(process::HostPid pid) {
  const auto identity = containers::IdentifyContainer(pid);
  if (!identity || !identity->reference) return {};
  std::string subject = fmt::format("{}-{}", containers::RuntimeName(identity->reference->runtime),
                                    identity->reference->name);
  for (char& c : subject) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return subject.substr(0, store::kMaxImageNameBytes / 2);
}

Result<std::string> Hold(Call& call, const std::string&) {
  if (::fcntl(kConnectionFd, F_SETFD, FD_CLOEXEC) != 0) {
    return FailUsage("CRIU's plugin is not connected");
  }
  STASIS_ASSIGN(auto hold, operations::Hold::Open(UniqueFd(kConnectionFd)));
  log::Write(log::Level::kInfo, "CRIU's plugin has requested a " + hold->verb(),
             {{"held", hold->target()}});
  auto run = [&]() -> Result<v1::OperationEvent> {
    operations::HoldOptions hold_options;
    STASIS_ASSIGN(hold_options.compression, store::ParseCompression(call.settings.compress));
    hold_options.by_reference = call.settings.criu_data == "reference";
    hold_options.subject = SubjectOf(hold->root());
    return Operate(call, hold->verb(), hold->verb() + " " + hold->target(), {},
                   [&](auto& session, auto& options) -> Result<operations::OperationResult> {
                     return hold->Run(session, hold_options, options);
                   });
  };
  auto event = run();
  hold->Answer(event ? Status() : Status(Fail(event.error())));
  if (!event) return Fail(std::move(event).error());
  return event->SerializeAsString();
}

// Restores from the image of `restore`, with the request's other options.
Result<v1::OperationEvent> RestoreFrom(Call& call, const v1::RestoreRequest& request,
                                       operations::RestoreOptions restore) {
  return Operate(call, "restore", "restore " + request.source(), request.options(),
                 [&](auto& session, auto& options) -> Result<operations::OperationResult> {
                   if (restore.image.empty()) {
                     STASIS_ASSIGN(restore.image, FindImage(call.paths, request.source()));
                   }
                   STASIS_TRY(CheckAbsolute("the log", request.log()));
                   STASIS_TRY(CheckAbsolute("the pid file", request.pid_file()));
                   STASIS_ASSIGN(options.arena_limit_bytes,
                                 ArenaLimit(request.arena_limit_bytes()));
                   restore.job = request.job();
                   restore.log = request.log();
                   restore.gpu_map = request.gpu_map();
                   restore.granted = request.gpus();
                   restore.new_pidns = request.new_pidns();
                   restore.share_files = request.share_files();
                   restore.trust_image = request.trust_image();
                   STASIS_ASSIGN(restore.criu, CriuOptionsOf(request.criu()));
                   STASIS_ASSIGN(auto result, operations::Restore(session, restore, options));
                   if (!request.pid_file().empty() && !options.dry_run) {
                     Status written = WritePidFile(request.pid_file(), result.pid);
                     if (!written) {
                       result.notes.push_back(
                           "the program is running, but the file of --pid-file was not written: " +
                           written.error().ToString());
                     }
                   }
                   return result;
                 });
}

Result<v1::OperationEvent> RestoreStreamed(Call& call, const v1::RestoreRequest& request,
                                           StreamedSource source) {
  source.options.progress = BytesProgressOf(call, "pull");
  STASIS_ASSIGN(const auto image, Annotate(repository::StreamedImage::Open(
                                               source.repository, source.name, call.paths.images(),
                                               std::move(source.options)),
                                           "cannot restore " + request.source()));
  const objects::Counters before = source.repository.store().counters();
  operations::RestoreOptions restore;
  restore.image = image->path();
  restore.ranges = image->ranges();
  restore.shown_as = source.shown_as;
  restore.earlier_log = std::move(source.earlier_log);
  restore.before_adopt = std::move(source.before_adopt);
  image->SetEarlier(std::move(source.earlier));
  restore.ahead = source.ahead;
  STASIS_ASSIGN(auto event, RestoreFrom(call, request, std::move(restore)));
  v1::OperationResult& result = *event.mutable_result();
  const objects::Counters after = source.repository.store().counters();
  const repository::PullReport& pulled = image->report();
  v1::Transfer& transfer = *result.mutable_transfer();
  transfer.set_name(source.name);
  transfer.set_moved_bytes(pulled.fetched_bytes + result.shared_bytes());
  transfer.set_known_bytes(pulled.shared_bytes);
  transfer.set_received_bytes(pulled.received_bytes + after.bytes_received - before.bytes_received);
  transfer.set_requests(pulled.requests + after.requests - before.requests);
  transfer.set_retries(pulled.retries + after.retries - before.retries);
  return event;
}

// Restores an image of a repository. Its GPU memory goes from there to the arenas; files and CPU
// memory are pulled first.
Result<v1::OperationEvent> RestoreRemote(Call& call, const v1::RestoreRequest& request,
                                         const RemoteImage& remote) {
  v1::RepositoryChoice choice;
  choice.set_name(remote.repository);
  choice.set_plain(remote.plain);
  const std::string what = "cannot restore " + request.source();
  STASIS_ASSIGN(const auto opened, Annotate(OpenRepository(call, choice), what));
  STASIS_ASSIGN(const BlockSecret naming, NamingSecretOf(call.paths));
  const store::UnitNames names(naming);
  STASIS_ASSIGN(repository::PullOptions options, PullOptionsOf(call, *opened, names));
  // Nothing is pulled for a restore that is refused.
  options.accept = [&](const store::Manifest& manifest) {
    return checks::CheckRemoteTrust(manifest, remote.name, opened->registration(), Caller::Self(),
                                    request.trust_image());
  };
  const std::string shown_as = remote.repository + "/" + remote.name;
  STASIS_ASSIGN(auto event,
                RestoreStreamed(
                    call, request,
                    {opened->repository(), remote.name, shown_as, std::move(options), {}, {}, {}}));
  v1::Transfer& transfer = *event.mutable_result()->mutable_transfer();
  transfer.set_repository(remote.repository);
  transfer.set_location(Utf8(opened->registration().location));
  return event;
}

Result<v1::OperationEvent> Restore(Call& call, const v1::RestoreRequest& request) {
  if (IsContainerSource(request.source())) {
    return Annotate(RestoreContainer(call, request), "cannot restore " + request.source());
  }
  STASIS_ASSIGN(auto remote, ParseRemoteImage(call, request.source()));
  if (!remote) remote = CopyOfJob(call.paths, request.source());
  if (!remote) return RestoreFrom(call, request, {});
  return RestoreRemote(call, request, *remote);
}

Result<v1::RecoverResponse> Recover(Call& call, const v1::RecoverRequest&) {
  STASIS_ASSIGN(auto session,
                operations::OpenSession(call.paths, call.settings, "recover", STASIS_VERSION));
  STASIS_ASSIGN(auto report,
                operations::Recover(session.services, Deadline::In(std::chrono::seconds(30))));
  v1::RecoverResponse response;
  for (const auto& r : report) {
    auto* recovered = response.add_recovered();
    recovered->set_verb(r.verb);
    recovered->set_target(Utf8(r.target));
    recovered->set_ok(r.ok);
    recovered->set_outcome(Utf8(r.outcome));
    recovered->set_operation(r.id);
  }
  // Only the user who began an operation can recover it.
  for (const auto& kept : gpu_state::ArenasOfOthers()) {
    response.add_not_looked_at(
        fmt::format("user {0} has the suspended process {1}; `sudo -u '#{0}' stasis recover` "
                    "finishes or undoes interrupted operations of this user",
                    kept.user, kept.process.pid.value));
  }
  return response;
}

}  // namespace stasis::api
