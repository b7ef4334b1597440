#include "operations/dump_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/bounded.h"
#include "base/file.h"
#include "checkpoint/describe.h"
#include "checkpoint/teardown.h"
#include "criu/amd_plugin.h"
#include "criu/diagnose.h"
#include "gpu_state/gpu_away.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "process/end.h"
#include "store/image_reference.h"
#include "store/manifest_codec.h"
#include "store/origin.h"

namespace stasis::operations {
namespace {

using plan::Phase;
using plan::PhaseReport;
using plan::PhaseScope;
using plan::Plan;
using std::chrono::seconds;

constexpr seconds kReapTime{5};
constexpr seconds kCountTime{2};

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
  return {.name = "image-begin",
          .run = [this](PhaseScope&) -> Status {
            // CRIU has begun to overwrite its files of an earlier dump, so the GPU data of that
            // dump is useless.
            if (dump_.held) STASIS_TRY(RemoveTree(dump_.held->folder));
            STASIS_ASSIGN(writer_, store::ImageWriter::Begin(dump_.store, name_));
            STASIS_ASSIGN(cleanup_, ImageCleanup::Start(*writer_, dump_.store, operation_.image));
            work_dir_ = checkpoint::WorkFolder(session_.services.paths, operation_.owner);
            return MakeDirs(work_dir_);
          },
          .undo = [this]() -> Status {
            if (!work_dir_.empty()) STASIS_TRY(RemoveTree(work_dir_));
            if (by_reference()) STASIS_TRY(RemoveTree(dump_.held->folder));
            return AbortImage();
          }};
}

// Deletes the image, except a complete image of a hand-over. If the store does not answer, the
// hidden folder stays, but the undo succeeds, because the program is as it was before.
Status DumpRun::AbortImage() {
  if (!writer_) return {};
  if (!cleanup_) return writer_->Abort();  // the store has just answered
  if (dump_.hand_over != nullptr && writer_->committed()) {
    const std::string left = cleanup_->RemoveLateFiles();
    if (!left.empty()) notes_.push_back(left);
    return {};
  }
  STASIS_ASSIGN(left_in_store_, cleanup_->RemoveFailedImage(commit_begun_));
  return {};
}

// Runs after the phases that take the GPU state away, because the child works on a copy of their
// results.
Phase DumpRun::StartImageProcess() {
  return {.name = "image-writer",
          .run = [this](PhaseScope&) -> Status {
            tasks_ = std::make_unique<ImageTasks>(
                ImageTasks::Context{session_.services, operation_, dump_, *writer_, shared_,
                                    stored_, streams_.get(), LogPath()});
            STASIS_ASSIGN(image_process_, checkpoint::ImageProcess::Start(
                                              tasks_->All(), tasks_->descriptors(), dump_.store));
            return {};
          },
          .undo = [this]() -> Status {
            if (image_process_) image_process_->End();
            return {};
          }};
}

Result<std::string> DumpRun::RunInImageProcess(const char* task, const std::string& request,
                                               PhaseScope& scope) {
  auto progress = [&](uint64_t done, uint64_t total) {
    scope.ReportBytes(done, total);
    return !scope.Abandoned();
  };
  auto answer = image_process_->Run(task, request, scope.deadline(), progress);
  if (!answer) return Fail(plan::WhyStopped(scope, std::move(answer).error()));
  return answer;
}

Phase DumpRun::TreeCheck() {
  return {.name = "tree-check", .run = [this](PhaseScope&) -> Status {
            STASIS_TRY(checks::CheckUnchanged(survey_));
            return checks::CheckStillOwn(survey_);
          }};
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
  cleanup_->NoteCommitted();
  STASIS_ASSIGN(const WrittenImage written, DecodeImage(answer));
  image_bytes_ = written.bytes;
  added_bytes_ = written.added_bytes;
  scope.SetBytes(image_bytes_);
  if (by_reference()) {
    STASIS_TRY(store::WriteReference(dump_.held->folder, {operation_.image, manifest_.image_id}));
  }
  return dump_.is_checkpoint ? RecordImage() : Status();
}

Status DumpRun::RecordImage() {
  if (operation_.job.empty()) return {};
  // After the commit CRIU kills the job. With this mark the shim can record that the job was
  // dumped, and to which image, even if this process dies.
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
  // An error here does not fail the dump, because the image is complete. kNotFound means that the
  // job was deleted during the dump.
  if (!added && added.error().code != Code::kNotFound) {
    notes_.push_back("the image could not be added to the job's record (restore it by its path): " +
                     added.error().ToString());
  }
  return {};
}

Phase DumpRun::Commit() {
  return {.name = kCommit,
          .timeout = seconds(600),
          .run = [this](PhaseScope& scope) -> Status {
            Status status = CommitImage(scope);
            // The image was renamed, but the job's record could not be written. The undo deletes
            // the image when the program runs again, so it must remove the mark "dumped" too.
            if (status || !writer_->committed()) return status;
            if (Status cleared = ClearDumped(); !cleared) {
              status.error().message +=
                  "; the job may be marked as dumped: " + cleared.error().ToString();
            }
            return status;
          },
          .commits = dump_.hand_over == nullptr};
}

Phase DumpRun::DataWrite() {
  return {.name = kDataWrite, .timeout = seconds(3600), .run = [this](PhaseScope& scope) -> Status {
            uint32_t uid = manifest_.job.uid;
            // If this phase runs in parallel with CRIU, `describe` may not have run yet.
            if (!commits_late()) {
              STASIS_ASSIGN(auto credentials, process::ReadCredentials(survey_.target.root.pid));
              uid = credentials.uid[1];
            }
            STASIS_ASSIGN(const std::string answer,
                          RunInImageProcess(kDataWrite, std::to_string(uid), scope));
            STASIS_ASSIGN(blocks_, DecodeUnits(answer));
            scope.SetBytes(blocks_.stored_bytes);
            return {};
          }};
}

// Returns the size of CRIU's files for the account. Returns 0 if the store does not answer within
// kCountTime, because the program is waiting for its GPU.
uint64_t DumpRun::CpuBytesInStore() const {
  auto count = [this](const NoteStep&) -> Result<std::string> {
    return std::to_string(FolderBytes(writer_->cpu_path()));
  };
  BoundedOptions options;
  options.keep_fds = writer_->descriptors();
  auto bytes = AskBounded(count, Deadline::In(kCountTime), options);
  return bytes ? std::stoull(*bytes) : 0;
}

// Continues what CRIU's plugin has stopped. It does so itself only if it saves every device file.
Status DumpRun::ContinueQueues() {
  if (facts_.criu_plugins.empty()) return {};
  return gpu_state::ContinueAllQueues(session_.services, operation_.device_processes);
}

// Returns the processes to their recorded state.
Status DumpRun::ReturnGpu() {
  STASIS_TRY(ContinueQueues());
  STASIS_TRY(gpu_state::ReturnAllToRecordedState(session_.services, operation_.device_processes));
  return shared_.ReturnMemory();
}

Phase DumpRun::GpuReturn() {
  return {.name = kGpuReturn,
          .timeout = seconds(600),
          .run = [this](PhaseScope& scope) -> Status {
            STASIS_TRY(ReturnGpu());
            for (const auto& p : operation_.device_processes) {
              if (process::IsAlive(p.id)) continue;
              return Fail(Code::kUnavailable,
                          fmt::format("process {} exited while its GPU state was restored",
                                      p.id.pid.value));
            }
            has_gpu_ = true;
            if (criu_) criu_->LetGo();
            scope.SetBytes(gpu_state::DriverBytes(operation_.device_processes, false));
            return {};
          },
          // If the GPU state cannot be returned, the program may be lost, so the image is written
          // nevertheless.
          .fails_late = true};
}

Phase DumpRun::DataFree() {
  return {.name = "data-free", .run = [this](PhaseScope&) -> Status {
            if (has_gpu_) shared_.ReleaseGpu();
            return {};
          }};
}

Phase DumpRun::AwaitEnd() {
  return {.name = "await-end",
          .timeout = seconds(600),  // freeing a terabyte of memory takes a while
          .run = [this](PhaseScope& scope) -> Status {
            AwaitStopped(process::WaitForEnd, scope.deadline());
            if (operation_.job.empty()) return {};
            // Wait until the shim has recorded that the job was dumped, so that a restore can
            // follow at once.
            jobs::Store store(session_.services.paths.jobs());
            auto ended = jobs::AwaitEnd(store, operation_.job, scope.deadline());
            // The job may have been deleted since the program ended.
            if (!ended && ended.error().code != Code::kNotFound) {
              notes_.push_back("the job's record may not show yet that it was dumped: " +
                               ended.error().ToString());
            }
            // Do not wait until an adopted program is reaped, because Stasis does not control its
            // parent.
            if (ended && jobs::IsAdopted(*ended)) return {};
            // Wait until the shim has reaped the processes, so that their pids are free for a
            // restore.
            AwaitStopped(process::WaitUntilReaped,
                         Deadline::Sooner(scope.deadline(), Deadline::In(kReapTime)));
            return {};
          }};
}

// The program that drives CRIU decides whether the dumped program ends or continues.
Phase DumpRun::AwaitEndOrReturnGpu() {
  return {.name = "await-end", .timeout = seconds(600), .run = [this](PhaseScope& scope) -> Status {
            if (!left_running_) {
              AwaitStopped(process::WaitForEnd, scope.deadline());
              return {};
            }
            STASIS_TRY(ReturnGpu());
            has_gpu_ = true;
            shared_.ReleaseGpu();
            return {};
          }};
}

// A process that does not end in time is reported in a note and is not an error, because the image
// is complete and the program was killed.
void DumpRun::AwaitStopped(Status (*wait)(const process::ProcessId&, const Deadline&),
                           const Deadline& deadline) {
  for (const process::ProcessId& id : stopped_) {
    if (Status ended = wait(id, deadline); !ended) {
      notes_.push_back("the dumped program: " + ended.error().ToString());
    }
  }
}

// Finishes the program before it accesses the store, because the store may not answer.
std::string DumpRun::FinishAfterFailure() {
  std::string left = FinishProgram();
  const std::string in_store = cleanup_->RemoveLateFiles();
  return in_store.empty() ? left : left + " " + in_store;
}

std::string DumpRun::FinishProgram() {
  std::string left = fmt::format("The image {} is complete.", operation_.image);
  if (switched_) {
    left +=
        fmt::format(" The program {} {}{}.", runs_there_ ? "is running at" : "may be running at",
                    jobs::kMovedTo, dump_.hand_over->Place());
  }
  if (half_ended_) {
    return left + " A part of the program was ended; the remaining processes must be killed.";
  }
  auto lives = [](const process::ProcessId& id) { return process::IsAlive(id); };
  bool alive = !criu_ended_the_program_ && std::any_of(living_.begin(), living_.end(), lives);
  if (!alive && switched_) return left;
  if (!alive) return left + " The program has ended; `stasis restore` restores it.";
  Status returned = ReturnGpu();
  Status forgotten = ClearDumped();
  for (const Status& status : {returned, forgotten}) {
    if (!status)
      return left + " The program could not be resumed: " + status.error().ToString() + ".";
  }
  if (!lives(survey_.tree.root().id)) {
    return left +
           " The program's first process has ended, by itself or by CRIU; the other processes are "
           "still running.";
  }
  return left + " The program was not ended and is as it was before.";
}

// Called if CRIU's caller has let the program continue after the commit, because the caller's own
// dump failed for another reason. The caller will not use the image.
void DumpRun::DeleteUnusedImage() {
  Status deleted = RemoveTree(dump_.held->folder);
  if (deleted) deleted = cleanup_->DeleteImage();
  if (deleted) return;
  notes_.push_back(fmt::format("the image {} is not needed but could not be removed: {}",
                               operation_.image, deleted.error().ToString()));
}

Plan DumpRun::MakePlan() {
  gpu_state::Services& services = session_.services;
  gpu_state::Processes& processes = operation_.device_processes;
  Plan plan("dump");
  plan.Add(ImageBegin());
  if (!processes.empty() && !facts_.criu_plugins.empty()) {
    // CRIU's plugin saves what the driver of other programs saves.
    gpu_state::AddDataAway(plan, shared_, TreeCheck(), BeforeStop());
  } else if (!processes.empty()) {
    gpu_state::AddGpuAway(plan, services, processes, shared_, TreeCheck(),
                          /*precopy=*/dump_.leave_running, BeforeStop());
    plan.Add(gpu_state::GpuReleaseCheck(services, processes));
  } else {
    plan.Add(BeforeStop());
  }
  plan.Add(StartImageProcess());
  if (commits_late() && !processes.empty()) {
    // CRIU takes almost twice as long while data is written, so the image is written only when the
    // program runs again.
    plan.Add(CpuDump());
    plan.Add(GpuReturn());
    if (!shared_.empty()) plan.Add(DataFree());
    plan.Add(CpuWrite());
    if (has_data()) plan.Add(DataWrite());
  } else {
    std::vector<Phase> beside;
    if (has_data()) beside.push_back(DataWrite());
    beside.push_back(CpuDump());
    plan.AddParallel(std::move(beside));
  }
  if (commits_late() && processes.empty()) plan.Add(CpuWrite());
  plan.Add(commits_late() ? Commit() : dump_.held ? AwaitEndOrReturnGpu() : AwaitEnd());
  plan.Add({.name = "tidy", .run = [this](PhaseScope&) -> Status {
              image_process_->End();
              if (by_reference() && left_running_ && !dump_.leave_running) DeleteUnusedImage();
              std::string left = cleanup_->RemoveLateFiles();
              if (!left.empty()) notes_.push_back(std::move(left));
              if (!shared_.empty()) STASIS_TRY(shared_.ReturnArenas());
              const bool ended = !dump_.leave_running && !left_running_;
              if (!stored_.empty() && ended) STASIS_TRY(stored_.ReturnArenas());
              return RemoveTree(work_dir_);
            }});
  plan.OnFailureAfterCommit([this] { return FinishAfterFailure(); });
  return plan;
}

}  // namespace stasis::operations
