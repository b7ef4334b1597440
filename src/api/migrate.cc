#include "api/migrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/error_message.h"
#include "api/methods.h"
#include "api/migration_link.h"
#include "api/migration_notes.h"
#include "api/operate.h"
#include "api/remote_images.h"
#include "api/repository_choice.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/id128.h"
#include "base/secret.h"
#include "containers/reference.h"
#include "jobs/log_reader.h"
#include "jobs/store.h"
#include "migration/piped_store.h"
#include "migration/ssh.h"
#include "repository/push.h"
#include "repository/sealing.h"
#include "repository/sent_images.h"
#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/unit_names.h"

namespace stasis::api {
namespace {

using operations::HandOver;
using std::chrono::seconds;

constexpr seconds kAnswerTime{60};      // for the other host's answer to a short request
constexpr seconds kCheckTime{1800};     // the other host reads the CPU memory of the image
constexpr seconds kLoadTime{4 * 3600};  // the other host reads its GPU memory
constexpr seconds kFinishTime{10};
// Rounds end when at most kSmallRound bytes are left to send, or when a round was not much smaller
// than the one before.
constexpr uint64_t kSmallRound = 64ull << 20;
constexpr double kShrinks = 0.7;
constexpr size_t kMostLogBytes = 512 << 10;  // fits in a message

// The name of this host for messages.
std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "another host";
  return name;
}

// Returns the last lines of the file, or an empty string if it cannot be read.
std::string EndOfLog(const std::string& path) {
  jobs::LogReader log(path, jobs::LogReader::TailOffset(path, kMostLogBytes));
  std::string text;
  while (text.size() < kMostLogBytes) {
    auto part = log.Next();
    if (!part || part->empty()) break;
    text += *part;
  }
  return text;
}

// The repository through which images are sent: one of the user's (--via), or a temporary one in a
// folder on the other host.
class TransferRepository {
 public:
  static Result<std::unique_ptr<TransferRepository>> Open(const Call& call,
                                                          const v1::MigrateRequest& request) {
    std::unique_ptr<TransferRepository> transfer(new TransferRepository);
    if (request.has_via()) {
      STASIS_ASSIGN(transfer->opened_, OpenRepository(call, request.via()));
    }
    return transfer;
  }
  // Creates the repository in the folder of the other host, which must have answered kBegin. Does
  // nothing with --via.
  Status OpenPipe(MigrationLink& link, const std::string& host,
                  const objects::CallOptions& limits) {
    if (opened_) return {};
    piped_ = std::make_unique<migration::PipedStore>(link.channel(), host);
    sealing_ = repository::PlainSealing();
    STASIS_ASSIGN(auto info,
                  repository::CreateRepository(*piped_, /*is_sealed=*/false, "", limits));
    own_.emplace(*piped_, std::move(info), *sealing_);
    return {};
  }

  bool has_pipe() const { return piped_ != nullptr; }
  const repository::Repository& repository() const {
    return opened_ ? opened_->repository() : *own_;
  }
  const repository::OpenedRepository* opened() const { return opened_.get(); }

 private:
  TransferRepository() = default;
  std::unique_ptr<repository::OpenedRepository> opened_;
  std::unique_ptr<migration::PipedStore> piped_;
  std::unique_ptr<repository::Sealing> sealing_;
  std::optional<repository::Repository> own_;
};

class Migration final : public HandOver {
 public:
  Migration(Call& call, const v1::MigrateRequest& request) : call_(call), request_(request) {}

  Result<v1::OperationEvent> Run();

  // The functions of HandOver. They are called during the last dump.
  Status Prepare(const std::string& image, plan::PhaseScope& scope) override;
  Result<Switched> Switch(plan::PhaseScope& scope) override;
  std::string Place() const override {
    const std::string& name = request_.restore().job().empty() ? job_ : request_.restore().job();
    return fmt::format("{}/{}", request_.host(), name);
  }

 private:
  objects::CallOptions Limits(seconds time) const { return {Deadline::In(time), call_.stop}; }
  Status CheckHere();
  Status Connect();
  Status Rounds();
  Status Explain(Status answered, const char* task) const;
  Status CheckThere(const std::string& image);
  Status LoadThere(const std::string& image);
  Result<v1::OperationEvent> MoveNow();
  Result<v1::MigrationRound> Send(const std::string& image, const Progress& progress,
                                  const Deadline& deadline);
  v1::DumpRequest DumpTo(const std::string& name) const;
  std::string RoundName() const { return fmt::format("{}-{}", prefix_, images_.size() + 1); }
  std::string LastName() const { return prefix_ + "-last"; }
  Status MarkRounds();
  void SweepEarlier();
  Error Unknown(const std::string& image, const Result<v1::OperationEvent>& dumped) const;
  std::string NewestImage() const;
  void DeleteImages();
  void RemoveMark();

  Call& call_;
  const v1::MigrateRequest& request_;
  std::string job_;  // the job, or the process id; for messages
  std::string log_;  // path of the job's own log; empty if it logs to another file
  std::string prefix_;
  std::unique_ptr<migration::SshCommand> ssh_;
  std::unique_ptr<MigrationLink> link_;
  std::unique_ptr<TransferRepository> transfer_;
  std::optional<store::UnitNames> names_;
  store::Hidden mark_;  // while it is locked, a sweep keeps the images of the rounds
  std::optional<repository::SentImages> sent_;  // with --via
  std::vector<std::string> images_;  // names of the images of this migration; some may not exist
  std::vector<v1::MigrationRound> rounds_;
  std::vector<std::string> notes_;       // of this host
  std::vector<std::string> load_notes_;  // of the other host, about the last load
  v1::OperationResult restored_;
  bool keeps_newest_ = false;  // the newest image may be the only copy of the program
  bool runs_there_ = false;
  std::string lost_;  // why it is unknown whether the program runs there; empty if it is known
};

v1::DumpRequest Migration::DumpTo(const std::string& name) const {
  v1::DumpRequest dump = request_.dump();
  dump.set_target(request_.target());
  dump.set_name(name);
  dump.set_compress("none");
  return dump;
}

// Makes the checks that need no connection, and sets the members that name the target.
Status Migration::CheckHere() {
  if (containers::IsReference(request_.target())) {
    return FailUsage("a container cannot be migrated",
                     "use the runtime's own checkpoint and restore: docs/containers.md");
  }
  STASIS_TRY(migration::CheckHost(request_.host()));
  if (request_.via().name().find('/') != std::string::npos) {
    return FailUsage("--via needs the name of a repository, not its location",
                     "`stasis repo add` on both hosts gives it one");
  }
  STASIS_ASSIGN(const auto target, ParseTarget(call_.paths, request_.target(), {}));
  job_ = target.job.empty() ? request_.target() : target.job;
  const jobs::Store store(call_.paths.jobs());
  if (!target.job.empty()) {
    STASIS_ASSIGN(const jobs::Job job, store.Load(target.job));
    if (job.log == store.OwnLog(job.id)) log_ = job.log;
  }
  STASIS_ASSIGN(const Id128 id, Id128::Random());
  prefix_ =
      fmt::format("{}-moving-{}", target.job.empty() ? "pid" + job_ : job_, id.Hex().substr(0, 8));
  STASIS_ASSIGN(const BlockSecret secret, NamingSecretOf(call_.paths));
  names_.emplace(secret);
  return {};
}

Status Migration::Connect() {
  STASIS_ASSIGN(transfer_, TransferRepository::Open(call_, request_));
  STASIS_ASSIGN(ssh_, migration::SshCommand::Start(call_.settings.migrate_ssh, request_.host(),
                                                   call_.settings.migrate_remote_command));
  UniqueFd socket = ssh_->TakeSocket();
  UniqueFd output(::dup(socket.get()));
  if (!output) return FailErrno(errno, "dup");
  STASIS_ASSIGN(link_,
                MigrationLink::Open(std::move(socket), std::move(output), Limits(kAnswerTime)));
  v1::MigrationBegin begin;
  begin.set_stasis_version(STASIS_VERSION);
  begin.set_job(Utf8(job_));
  begin.set_from(Utf8(HostName()));
  if (transfer_->opened() != nullptr) {
    const auto& id = transfer_->repository().info().id.bytes;
    begin.set_via(request_.via().name());
    begin.set_via_id(id.data(), id.size());
  }
  v1::MigrationBegun begun;
  STASIS_TRY(
      link_->Ask(MessageKind::kBegin, begin, MessageKind::kBegun, begun, Limits(kAnswerTime)));
  return transfer_->OpenPipe(*link_, request_.host(), Limits(kAnswerTime));
}

// Sends the units of an image that the other host does not have.
Result<v1::MigrationRound> Migration::Send(const std::string& image, const Progress& progress,
                                           const Deadline& deadline) {
  STASIS_ASSIGN(const auto reader, store::ImageReader::Open(image));
  repository::PushOptions options;
  options.names = &*names_;
  options.trusts_index = true;
  options.progress = progress;
  options.stop = call_.stop;
  options.deadline = deadline;
  const auto report =
      repository::Push(transfer_->repository(), *reader,
                       reader->path().substr(reader->path().rfind('/') + 1), options);
  if (!report) {
    if (sent_) sent_->NotePushFailed();
    return Fail(report.error());
  }
  v1::MigrationRound round;
  round.set_sent_bytes(report->new_bytes);
  round.set_known_bytes(report->known_bytes);
  round.set_send_s(report->seconds);
  return round;
}

// Adds to an error that the other host could not do `task`, unless the request was cancelled here.
Status Migration::Explain(Status answered, const char* task) const {
  if (answered || call_.stop.stop_requested()) return answered;
  return Annotate(std::move(answered), fmt::format("{} cannot {}", request_.host(), task));
}

Status Migration::CheckThere(const std::string& image) {
  v1::MigrationCheck check;
  check.set_image(image);
  *check.mutable_restore() = request_.restore();
  v1::MigrationBegun answer;
  return Explain(
      link_->Ask(MessageKind::kCheck, check, MessageKind::kBegun, answer, Limits(kCheckTime)),
      "restore the program");
}

// Asks the other host to load the GPU memory of a round's image, before the last image exists.
Status Migration::LoadThere(const std::string& image) {
  v1::MigrationLoad load;
  load.set_image(image);
  v1::MigrationLoaded answer;
  STASIS_TRY(
      Explain(link_->Ask(MessageKind::kLoad, load, MessageKind::kLoaded, answer, Limits(kLoadTime)),
              "load the program's memory"));
  load_notes_.assign(answer.notes().begin(), answer.notes().end());
  return {};
}

// Marks the images of the rounds for sweeps, in case this process is killed. A sweep of the store
// then deletes all images of the migration except the newest, which may be the only copy of the
// program. A sweep of the repository keeps the newest image only if this host does not have it.
Status Migration::MarkRounds() {
  STASIS_TRY(MakeDirs(call_.paths.images()));
  STASIS_ASSIGN(mark_, store::MakeHidden(call_.paths.images(), prefix_, store::kMoving));
  if (transfer_->opened() == nullptr) return {};
  const repository::Repository& via = transfer_->repository();
  SweepEarlier();
  STASIS_ASSIGN(sent_, repository::SentImages::Begin(call_.paths.images(), prefix_, via));
  return {};
}

// Deletes images that killed migrations have left in the repository. If this fails, `stasis image
// gc -R` tries again.
void Migration::SweepEarlier() {
  const repository::OpenedRepository& via = *transfer_->opened();
  const auto swept =
      repository::SweepSentImages(call_.paths.images(), via.repository(), Limits(kAnswerTime));
  if (!swept) return;
  const std::string& name = via.registration().name;
  if (!swept->deleted.empty()) {
    notes_.push_back(fmt::format("deleted from {}, because its migration was killed: {}", name,
                                 fmt::join(swept->deleted, ", ")));
  }
  for (const std::string& image : swept->kept) {
    notes_.push_back(fmt::format("{}/{} was kept: {}", name, image, WhyKept(via, image)));
  }
}

// Dumps and sends the program while it runs, until little is left to send. After the first image,
// asks the other host whether it can restore the program.
Status Migration::Rounds() {
  STASIS_TRY(MarkRounds());
  for (uint32_t round = 0; round < request_.max_rounds(); ++round) {
    const std::string name = RoundName();
    v1::DumpRequest dump = DumpTo(name);
    dump.set_leave_running(true);
    images_.push_back(name);
    STASIS_ASSIGN(const auto dumped, DumpToMove(call_, dump, nullptr));
    STASIS_ASSIGN(v1::MigrationRound sent,
                  Send(dumped.result().image(), BytesProgressOf(call_, "send"), Deadline()));
    sent.set_dump_s(dumped.result().total_s());
    rounds_.push_back(sent);
    if (round == 0) STASIS_TRY(CheckThere(name));
    const Stopwatch loading;
    STASIS_TRY(LoadThere(name));
    rounds_.back().set_load_s(loading.Seconds());
    if (sent.sent_bytes() <= kSmallRound) break;
    if (round > 0 && static_cast<double>(sent.sent_bytes()) >
                         kShrinks * static_cast<double>(rounds_[round - 1].sent_bytes())) {
      break;
    }
  }
  return {};
}

Status Migration::Prepare(const std::string& image, plan::PhaseScope& scope) {
  const auto progress = [&](uint64_t done, uint64_t total) {
    scope.ReportBytes(done, total);
    return !scope.Cancelled() && !scope.Abandoned();
  };
  STASIS_ASSIGN(const auto sent, Send(image, progress, scope.deadline()));
  rounds_.push_back(sent);
  scope.SetBytes(sent.sent_bytes());
  v1::MigrationRestore restore;
  restore.set_image(images_.back());
  *restore.mutable_restore() = request_.restore();
  if (!log_.empty()) restore.set_earlier_log(EndOfLog(log_));
  const objects::CallOptions limits{scope.deadline(), call_.stop};
  STASIS_TRY(link_->Send(MessageKind::kRestore, restore, limits));
  v1::MigrationBegun ready;
  return Explain(link_->Await(MessageKind::kReady, ready, limits), "restore the program");
}

// Asks the other host to let the program run. After this request the program must not be resumed
// here, unless the other host answers that it is not running there.
Result<HandOver::Switched> Migration::Switch(plan::PhaseScope& scope) {
  const objects::CallOptions limits{scope.deadline(), {}};
  v1::OperationEvent event;
  Status answered = link_->Send(MessageKind::kGo, v1::MigrationBegun(), limits);
  if (answered) answered = link_->Await(MessageKind::kDone, event, limits);
  if (answered) {
    restored_ = event.result();
    runs_there_ = true;
    return Switched::kRunsThere;
  }
  if (link_->refused()) return Fail(std::move(answered).error());
  lost_ = std::move(answered).error().ToString();
  return Switched::kUnknown;
}

// `dumped` is the result of the last dump, which ends the program here.
Error Migration::Unknown(const std::string& image, const Result<v1::OperationEvent>& dumped) const {
  const std::string ended =
      dumped ? "The program was ended here"
             : fmt::format("Ending the program here failed ({})", dumped.error().ToString());
  Error error{Code::kUnavailable};
  error.message = fmt::format(
      "it is unknown whether the program is running on {}, because the connection was lost while "
      "the program was handed over ({}). {}, and its image {} is complete",
      request_.host(), lost_, ended, image);
  error.hint = fmt::format(
      "Wait for a minute, in which {0} may still start the program, then run `stasis ps` on {0}. "
      "If the program is not running there, `stasis restore {1}` starts it here.",
      request_.host(), image);
  if (!dumped) error.hint = dumped.error().hint + "\n" + error.hint;
  error.not_undone = true;
  return error;
}

Result<v1::OperationEvent> Migration::MoveNow() {
  const std::string name = LastName();
  const std::string image = call_.paths.images() + "/" + name;
  images_.push_back(name);
  auto event = DumpToMove(call_, DumpTo(name), this);
  if (!lost_.empty()) return Fail(Unknown(image, event));
  if (!event) return event;
  v1::OperationResult& result = *event->mutable_result();
  // The phases and bytes are those of the last dump; its verb, job, pid and image do not apply.
  result.set_verb("migrate");
  result.set_job(restored_.job());
  result.set_pid(restored_.pid());
  result.clear_image();
  double begun = -1, end = 0;
  for (const v1::PhaseReport& phase : result.phases()) {
    const std::string& name = phase.name();
    if (begun < 0 && (name == "gate-close" || name == "gpu-lock" || name == "cpu-dump")) {
      begun = phase.start_s();
    }
    if (name == HandOver::kSwitch) end = phase.start_s() + phase.seconds();
  }
  result.set_pause_s(begun < 0 ? 0 : std::max(0.0, end - begun));
  v1::Migration& migration = *result.mutable_migration();
  migration.set_host(Utf8(request_.host()));
  migration.set_via(Utf8(request_.via().name()));
  for (const v1::MigrationRound& round : rounds_) *migration.add_rounds() = round;
  *migration.mutable_restore_phases() = restored_.phases();
  migration.set_restore_cold_bytes(restored_.cold_bytes());
  for (const std::string& note : notes_) result.add_notes(Utf8(note));
  AddNotesOf(request_.host(), load_notes_, result);
  AddNotesOf(request_.host(), restored_.notes(), result);
  return event;
}

// Returns the name of the newest complete image here, or an empty string.
std::string Migration::NewestImage() const {
  const auto exists = [&](const std::string& name) {
    return PathExists(call_.paths.images() + "/" + name);
  };
  const auto newest = std::find_if(images_.rbegin(), images_.rend(), exists);
  return newest == images_.rend() ? std::string() : *newest;
}

// Deletes the migration's images in the repository and on this host, even after a cancellation.
// Keeps the newest one if it may be the only copy of the program. Otherwise deletes the last one
// first, because later sweeps would keep it.
void Migration::DeleteImages() {
  // If this fails, a later sweep tries again.
  if (sent_) {
    (void)sent_->Delete(transfer_->repository(), keeps_newest_, {Deadline::In(kAnswerTime), {}});
  }
  const std::string kept = keeps_newest_ ? NewestImage() : std::string();
  bool all_gone = true;
  for (auto name = images_.rbegin(); name != images_.rend(); ++name) {
    if (*name == kept || !PathExists(call_.paths.images() + "/" + *name)) continue;
    v1::DeleteImagesRequest removal;
    removal.add_images(*name);
    if (!api::DeleteImages(call_, removal)) all_gone = false;
  }
  if (all_gone) RemoveMark();
}

void Migration::RemoveMark() {
  if (mark_.name.empty()) return;
  auto folder = store::OpenFolder(call_.paths.images());
  if (folder) (void)store::RemoveHidden(folder->get(), call_.paths.images(), mark_.name);
}

Result<v1::OperationEvent> Migration::Run() {
  auto run = [&]() -> Result<v1::OperationEvent> {
    STASIS_TRY(CheckHere());
    Status connected = Connect();
    if (!connected) {
      Error error = std::move(connected).error();
      return Fail(ssh_ ? ssh_->Explain(std::move(error)) : std::move(error));
    }
    // A dry run sends no image, so the other host cannot check whether it could restore the
    // program.
    if (request_.dump().options().dry_run()) {
      STASIS_ASSIGN(auto event, DumpToMove(call_, DumpTo(LastName()), this));
      event.mutable_result()->set_verb("migrate");
      return event;
    }
    STASIS_TRY(Rounds());
    return MoveNow();
  };
  auto event = run();
  // The program may have ended, or may be left without its GPU state.
  keeps_newest_ = !lost_.empty() || (!event && event.error().not_undone);
  link_.reset();  // the other host stops at once if it is still at work
  DeleteImages();
  if (keeps_newest_ && lost_.empty() && !runs_there_ && !NewestImage().empty()) {
    event.error().hint += fmt::format(
        "\nThe image {} was kept, because it may be the only copy of the program.", NewestImage());
  }
  if (ssh_) ssh_->Finish(Deadline::In(kFinishTime));
  return Annotate(std::move(event),
                  fmt::format("cannot migrate {} to {}", request_.target(), request_.host()));
}

}  // namespace

Result<v1::OperationEvent> Migrate(Call& call, const v1::MigrateRequest& request) {
  return Migration(call, request).Run();
}

}  // namespace stasis::api
