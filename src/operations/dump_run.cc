#include "operations/dump_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/bounded.h"
#include "base/file.h"
#include "checkpoint/describe.h"
#include "checkpoint/teardown.h"
#include "criu/client.h"
#include "criu/diagnose.h"
#include "criu/inside.h"
#include "gpu_state/gpu_away.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "process/end.h"
#include "store/manifest_codec.h"
#include "store/origin.h"

namespace stasis::operations {
namespace {

using gpu_state::Lot;
using plan::Phase;
using plan::PhaseReport;
using plan::PhaseScope;
using plan::Plan;
using std::chrono::seconds;

// Where CRIU finds our lock: it keeps it until it has let the program go, also when we are dead by
// then.
constexpr int kCriuLockFd = 20;

constexpr seconds kCriuStart{20};
constexpr seconds kReapTime{5};
constexpr seconds kCountTime{2};

constexpr const char* kCpuDump = "cpu-dump";
constexpr const char* kGpuReturn = "gpu-return";

}  // namespace

double Pause(const std::vector<PhaseReport>& phases) {
  double begin = -1, end = 0;
  for (const PhaseReport& phase : phases) {
    const bool stops = phase.name == "gate-close" || phase.name == "gpu-lock" ||
                       phase.name == kCpuDump || phase.name == kGpuReturn;
    if (!stops) continue;
    if (begin < 0) begin = phase.start_s;
    end = phase.start_s + phase.seconds;
  }
  return begin < 0 ? 0 : end - begin;
}

Status DumpRun::ClearDumped() {
  if (operation_.job.empty()) return {};
  return jobs::Store(session_.services.paths.jobs()).ClearDumped(operation_.job);
}

Phase DumpRun::ImageBegin() {
  Phase phase;
  phase.name = "image-begin";
  phase.run = [this](PhaseScope&) -> Status {
    STASIS_ASSIGN(writer_, store::ImageWriter::Begin(dump_.store, name_));
    STASIS_ASSIGN(cleaner_, checkpoint::StoreCleaner::Start(*writer_, dump_.store));
    work_dir_ = checkpoint::WorkFolder(session_.services.paths, operation_.owner);
    return MakeDirs(work_dir_);
  };
  phase.undo = [this]() -> Status {
    if (!work_dir_.empty()) STASIS_TRY(RemoveTree(work_dir_));
    return AbortImage();
  };
  return phase;
}

// A store that does not answer keeps the hidden folder, which is no failure to undo: the program is
// as it was before.
Status DumpRun::AbortImage() {
  if (!writer_) return {};
  if (!cleaner_) return writer_->Abort();  // the store has just answered
  // The job's record failed behind the image's rename.
  const bool committed = writer_->committed();
  const std::string what = committed ? operation_.image : writer_->partial_path();
  Status removed = committed ? cleaner_->DeleteImage() : cleaner_->Abort();
  if (removed && committed) removed = cleaner_->RemoveLateFiles();
  writer_->Abandon();
  if (removed) return {};
  if (removed.error().code != Code::kDeadlineExceeded) {
    return Annotate(std::move(removed), "remove " + what);
  }
  left_in_store_ = fmt::format(
      "The program is as it was before. {} may be left{}. When the store answers again, `stasis "
      "image {}` removes it.",
      what, committed ? ", complete or hidden" : "", committed ? "delete" : "gc -d " + dump_.store);
  if (commit_begun_ && !committed) {
    left_in_store_ += fmt::format(
        " A folder {} without a manifest may be left too, and is no image.", operation_.image);
  }
  left_in_store_ += " " + removed.error().message + ".";
  return {};
}

// After the phases that take the GPU state away, which fill what is written; before CRIU starts,
// whose socket the child would hold.
Phase DumpRun::StartImageProcess() {
  Phase phase;
  phase.name = "image-writer";
  phase.run = [this](PhaseScope&) -> Status {
    tasks_ = std::make_unique<ImageTasks>(ImageTasks::Context{
        session_.services, operation_, dump_, *writer_, shared_, stored_, LogPath()});
    STASIS_ASSIGN(image_process_, checkpoint::ImageProcess::Start(
                                      tasks_->All(), tasks_->descriptors(), dump_.store));
    return {};
  };
  phase.undo = [this]() -> Status {
    if (image_process_) image_process_->End();
    return {};
  };
  return phase;
}

Result<std::string> DumpRun::RunInImageProcess(const char* task, const std::string& request,
                                               PhaseScope& scope) {
  auto progress = [&](uint64_t done, uint64_t total) {
    scope.ReportBytes(done, total);
    return !scope.Abandoned();
  };
  auto answer = image_process_->Run(task, request, scope.deadline(), progress);
  if (!answer) return Fail(plan::CalledOff(scope, std::move(answer).error()).error());
  return answer;
}

Phase DumpRun::TreeCheck() {
  Phase phase;
  phase.name = "tree-check";
  phase.run = [this](PhaseScope&) -> Status {
    STASIS_TRY(checks::CheckUnchanged(survey_));
    return checks::CheckStillOwn(survey_);
  };
  return phase;
}

Status DumpRun::RunCriu(PhaseScope& scope) {
  criu::DumpRequest request;
  request.pid = survey_.target.root.pid;
  request.images_dir = writer_->cpu_path();
  request.log_path = LogPath();
  request.leave_running = dump_.leave_running;
  request.options = dump_.criu;
  stdio_.ApplyTo(request.options);
  const std::map<int, int> lock = {{kCriuLockFd, session_.journal->lock_fd()}};
  STASIS_ASSIGN(criu::Session criu, in_own_pidns_
                                        ? criu::Inside::Spawn(criu_path_, request, request.pid,
                                                              lock, Deadline::In(kCriuStart))
                                        : criu::Session::Spawn(criu_path_, lock));
  Status committed;
  Status dumped = criu.Dump(
      request,
      [&](criu::Notification& notification) -> Status {
        if (notification.moment != criu::Moment::kPostDump) return {};
        committed = scope.RunNested("describe");
        // Its images are complete, and will be synced: it may run.
        if (dump_.leave_running || !committed) return committed;
        committed = scope.RunNested(kCpuWrite);
        if (committed && has_data()) committed = scope.Await(kDataWrite);
        if (committed) committed = scope.RunNested(kCommit);
        return committed;
      },
      scope.deadline());
  criu_ended_the_program_ = dumped && !dump_.leave_running;
  // What went wrong first is what the user has to know; CRIU's own trouble follows from it.
  STASIS_TRY(std::move(committed));
  dumped = KeepLog(std::move(dumped));
  if (dumped || dump_.leave_running || !writer_->committed()) return dumped;
  half_ended_ = HasBegunToEnd();
  if (!half_ended_) return dumped;
  // The image is complete, and part of a program is of use to nobody: what was asked for is done.
  if (Status ended = checkpoint::EndAll(living_); !ended)
    return Annotate(std::move(ended), "end the program");
  notes_.push_back("all is done, but CRIU did not end as it should when it ended the program: " +
                   dumped.error().ToString());
  half_ended_ = false;
  criu_ended_the_program_ = true;
  return {};
}

// CRIU was killed behind the commit, which may have been before it had killed anybody; then the
// program runs again, and who of it ends does so by himself. CRIU kills the root first: while that
// lives and was not sent SIGKILL, nobody was. A program that runs on cannot be had back once it is
// ended.
bool DumpRun::HasBegunToEnd() const {
  const process::ProcessId root = survey_.tree.root().id;
  return !process::IsAlive(root) || process::WasKilled(root);
}

// The undo takes the work folder away, and the error names the log in it.
Status DumpRun::KeepLog(Status dumped) {
  std::string kept = session_.services.paths.run + "/last-criu-dump.log";
  if (dumped || !criu::CopyLogBounded(LogPath(), kept)) return dumped;
  std::string& hint = dumped.error().hint;
  size_t at = hint.find(LogPath());
  if (at != std::string::npos) hint.replace(at, LogPath().size(), kept);
  return dumped;
}

// CRIU holds the tree stopped: what it is now is what the image holds. Children may have come and
// gone since the survey.
Phase DumpRun::Describe() {
  Phase phase;
  phase.name = "describe";
  phase.run = [this](PhaseScope& scope) -> Status {
    checks::Survey stopped = survey_;
    STASIS_ASSIGN(stopped.tree, process::ReadTree(survey_.target.root.pid));
    stopped_.clear();
    living_.clear();
    for (const auto& member : stopped.tree.members) {
      stopped_.push_back(member.id);
      if (process::IsAlive(member)) living_.push_back(member.id);
    }
    STASIS_TRY(session_.journal->NoteMembers(living_));
    // Nobody changes who he is any more. What was written of somebody else goes with the folder.
    STASIS_TRY(checks::CheckStillOwn(stopped));
    const checkpoint::DumpedProgram program{
        stopped.tree,        stopped.target.job, stopped.RecordedProcesses(),
        dump_.leave_running, dump_.criu,         stdio_,
        criu_version_};
    STASIS_ASSIGN(manifest_,
                  checkpoint::DescribeProgram(session_.services, program, scope.deadline()));
    return {};
  };
  return phase;
}

Status DumpRun::CommitImage(PhaseScope& scope) {
  STASIS_ASSIGN(manifest_.image_id, Id128::Random());
  for (const PhaseReport& report : scope.Reports()) {
    manifest_.phases.push_back({report.name, report.start_s, report.seconds, report.bytes, ""});
  }
  STASIS_ASSIGN(const std::string manifest, store::EncodeManifest(manifest_));
  commit_begun_ = true;
  STASIS_ASSIGN(const std::string answer, RunInImageProcess(kCommit, manifest, scope));
  writer_->NoteCommitted();
  cleaner_->NoteCommitted();
  STASIS_ASSIGN(const WrittenImage written, ImageIn(answer));
  image_bytes_ = written.bytes;
  added_bytes_ = written.added_bytes;
  scope.SetBytes(image_bytes_);
  if (operation_.job.empty()) return {};
  // From here on the image is the job's, whatever becomes of us; its shim must know why the job
  // will be killed.
  jobs::Store store(session_.services.paths.jobs());
  if (!dump_.leave_running) {
    STASIS_TRY(store.MarkDumped(operation_.job, survey_.tree.root().id, operation_.image));
  }
  jobs::Checkpoint checkpoint;
  checkpoint.image = operation_.image;
  checkpoint.name = name_;
  checkpoint.time_ms = std::time(nullptr) * 1000;
  checkpoint.bytes = image_bytes_;
  checkpoint.written_bytes = added_bytes_;
  checkpoint.seconds = watch_.Seconds();
  Status added = store.AddCheckpoint(operation_.job, checkpoint);
  // The image is complete, and worth more than its place in the job's history. Whoever deletes a
  // job that runs on beside its dump does not mean the image.
  if (!added && added.error().code != Code::kNotFound) {
    notes_.push_back("the image is not among the job's checkpoints (restore it by its path): " +
                     added.error().ToString());
  }
  return {};
}

Phase DumpRun::Commit() {
  Phase phase;
  phase.name = kCommit;
  phase.timeout = seconds(600);
  phase.commits = true;
  phase.run = [this](PhaseScope& scope) -> Status {
    Status status = CommitImage(scope);
    // The job's record comes after the image's rename. The undo deletes the image, when the program
    // runs again.
    if (status || !writer_->committed()) return status;
    if (Status cleared = ClearDumped(); !cleared) {
      status.error().message +=
          "; the job may say that it was dumped: " + cleared.error().ToString();
    }
    return status;
  };
  return phase;
}

Phase DumpRun::DataWrite() {
  Phase phase;
  phase.name = kDataWrite;
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_ASSIGN(auto credentials, process::ReadCredentials(survey_.target.root.pid));
    STASIS_ASSIGN(const std::string answer,
                  RunInImageProcess(kDataWrite, std::to_string(credentials.uid[1]), scope));
    STASIS_ASSIGN(blocks_, UnitsIn(answer));
    scope.SetBytes(blocks_.stored_bytes);
    return {};
  };
  return phase;
}

Phase DumpRun::CpuWrite() {
  Phase phase;
  phase.name = kCpuWrite;
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_ASSIGN(const std::string answer,
                  RunInImageProcess(kCpuWrite, std::to_string(manifest_.job.uid), scope));
    STASIS_ASSIGN(pages_, UnitsIn(answer));
    scope.SetBytes(pages_.stored_bytes);
    return {};
  };
  return phase;
}

// For the account. The program waits for its GPU meanwhile: a store that does not answer at once
// is not waited for.
uint64_t DumpRun::CpuBytesInStore() const {
  auto count = [this](const NoteStep&) -> Result<std::string> {
    return std::to_string(FolderBytes(writer_->cpu_path()));
  };
  BoundedOptions options;
  options.keep_fds = writer_->descriptors();
  auto bytes = AskBounded(count, Deadline::In(kCountTime), options);
  return bytes ? std::stoull(*bytes) : 0;
}

// As it was before the dump.
Status DumpRun::GiveBackGpu() {
  STASIS_TRY(gpu_state::ReturnAllToRecordedState(session_.services, operation_.device_processes));
  return shared_.Return();
}

Phase DumpRun::CpuDump() {
  Phase phase;
  phase.name = kCpuDump;
  phase.timeout = seconds(900);
  phase.run = [this](PhaseScope& scope) -> Status {
    Status dumped = RunCriu(scope);
    // Nothing of it will be needed, and data-write must not go on until its own deadline.
    if (!dumped && !writer_->committed()) image_process_->End();
    STASIS_TRY(std::move(dumped));
    scope.SetBytes(dump_.leave_running ? CpuBytesInStore() : image_bytes_);
    return {};
  };
  phase.nested.push_back(Describe());
  if (!dump_.leave_running) {
    phase.nested.push_back(CpuWrite());
    phase.nested.push_back(Commit());
  }
  return phase;
}

Phase DumpRun::GpuReturn() {
  Phase phase;
  phase.name = kGpuReturn;
  phase.timeout = seconds(600);
  // The image may be the only thing that is left of the program then.
  phase.fails_late = true;
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(GiveBackGpu());
    for (const auto& p : operation_.device_processes) {
      if (process::IsAlive(p.id)) continue;
      return Fail(Code::kUnavailable,
                  fmt::format("process {} has ended on the way back to its GPU", p.id.pid.value));
    }
    has_gpu_ = true;
    scope.SetBytes(gpu_state::DriverBytes(operation_.device_processes, false));
    return {};
  };
  return phase;
}

Phase DumpRun::DataFree() {
  Phase phase;
  phase.name = "data-free";
  phase.run = [this](PhaseScope&) -> Status {
    if (has_gpu_) shared_.LetGoOfGpu();
    return {};
  };
  return phase;
}

Phase DumpRun::AwaitEnd() {
  Phase phase;
  phase.name = "await-end";
  phase.timeout = seconds(600);  // a terabyte of memory takes its time to be given back
  phase.run = [this](PhaseScope& scope) -> Status {
    AwaitStopped(process::WaitForEnd, scope.deadline());
    if (operation_.job.empty()) return {};
    // Its shim has written down that it was dumped: a restore may follow at once.
    jobs::Store store(session_.services.paths.jobs());
    auto ended = jobs::AwaitEnd(store, operation_.job, scope.deadline());
    // The program has ended and its image is complete. Whoever saw that may have deleted the job.
    if (!ended && ended.error().code != Code::kNotFound) {
      notes_.push_back("the job may not say yet that it was dumped: " + ended.error().ToString());
    }
    // Whose parent is not ours is left to that one.
    if (ended && jobs::IsAdopted(*ended)) return {};
    // Of a job no parent is slow: whoever comes next finds nothing of it, and its numbers free.
    AwaitStopped(process::WaitUntilReaped,
                 Deadline::Sooner(scope.deadline(), Deadline::In(kReapTime)));
    return {};
  };
  return phase;
}

// What stays is said and no failure: the image is complete, and the program is killed.
void DumpRun::AwaitStopped(Status (*wait)(const process::ProcessId&, const Deadline&),
                           const Deadline& deadline) {
  for (const process::ProcessId& id : stopped_) {
    if (Status ended = wait(id, deadline); !ended) {
      notes_.push_back("of the program that was dumped, " + ended.error().ToString());
    }
  }
}

// The program comes first: the store may not answer.
std::string DumpRun::Settle() {
  std::string left = BringToRest();
  const std::string in_store = RemoveLateFiles();
  return in_store.empty() ? left : left + " " + in_store;
}

std::string DumpRun::BringToRest() {
  std::string left = fmt::format("The image {} is complete.", operation_.image);
  if (half_ended_) {
    return left + " Of the program a part was ended; what is left of it can only be ended too.";
  }
  auto lives = [](const process::ProcessId& id) { return process::IsAlive(id); };
  bool alive = !criu_ended_the_program_ && std::any_of(living_.begin(), living_.end(), lives);
  if (!alive) return left + " The program has ended; `stasis restore` brings it back.";
  Status returned = GiveBackGpu();
  Status forgotten = ClearDumped();
  for (const Status& status : {returned, forgotten}) {
    if (!status)
      return left + " The program is stopped half-way: " + status.error().ToString() + ".";
  }
  if (!lives(survey_.tree.root().id)) {
    return left +
           " The program's first process has ended, by itself or by CRIU; the others run on.";
  }
  return left + " The program was not ended and is as it was before.";
}

// The image is complete; what stays is no failure.
std::string DumpRun::RemoveLateFiles() {
  const std::string late = writer_->late_path();
  Status removed = cleaner_->RemoveLateFiles();
  writer_->Abandon();
  if (removed) return {};
  return fmt::format("{} is left and of no use: {}. `stasis image gc -d {}` removes it.", late,
                     removed.error().ToString(), dump_.store);
}

Plan DumpRun::MakePlan() {
  gpu_state::Services& services = session_.services;
  const gpu_state::Processes& processes = operation_.device_processes;
  Plan plan("dump");
  plan.Add(ImageBegin());
  if (!processes.empty()) {
    gpu_state::AddGpuAway(plan, services, processes, shared_, TreeCheck());
    plan.Add(gpu_state::GpuReleaseCheck(services, processes));
  }
  plan.Add(StartImageProcess());
  std::vector<Phase> beside;
  if (has_data()) beside.push_back(DataWrite());
  if (dump_.leave_running && !processes.empty()) {
    std::vector<Phase> program;
    program.push_back(CpuDump());
    program.push_back(GpuReturn());
    if (!shared_.empty()) program.push_back(DataFree());
    program.push_back(CpuWrite());
    beside.push_back(plan::InOrder("program-back", std::move(program)));
  } else {
    beside.push_back(CpuDump());
  }
  plan.AddParallel(std::move(beside));
  if (dump_.leave_running && processes.empty()) plan.Add(CpuWrite());
  plan.Add(dump_.leave_running ? Commit() : AwaitEnd());
  Phase tidy;
  tidy.name = "tidy";
  tidy.run = [this](PhaseScope&) -> Status {
    image_process_->End();
    std::string left = RemoveLateFiles();
    if (!left.empty()) notes_.push_back(std::move(left));
    if (!shared_.empty()) STASIS_TRY(shared_.DropArenas());
    if (!stored_.empty() && !dump_.leave_running) STASIS_TRY(stored_.DropArenas());
    return RemoveTree(work_dir_);
  };
  plan.Add(std::move(tidy));
  plan.OnFailureAfterCommit([this] { return Settle(); });
  return plan;
}

}  // namespace stasis::operations
