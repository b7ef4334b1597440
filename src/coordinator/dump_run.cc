#include "coordinator/dump_run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/file.h"
#include "coordinator/agent_files.h"
#include "coordinator/block_key.h"
#include "coordinator/describe.h"
#include "coordinator/gpu_away.h"
#include "coordinator/teardown.h"
#include "criu/client.h"
#include "criu/diagnose.h"
#include "criu/inside.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "process/end.h"
#include "store/store_folder.h"
#include "store/user_limit.h"

namespace stasis::coordinator {
namespace {

using std::chrono::seconds;

// Where CRIU finds our lock: it keeps it until it has let the program go, also when we are dead by
// then.
constexpr int kCriuLockFd = 20;

constexpr seconds kCriuStart{20};
constexpr seconds kReapTime{5};

constexpr const char* kDataWrite = "data-write";
constexpr const char* kCpuDump = "cpu-dump";
constexpr const char* kCpuWrite = "cpu-write";
constexpr const char* kGpuReturn = "gpu-return";

uint64_t FolderBytes(const std::string& folder) {
  uint64_t sum = 0;
  auto names = ListDir(folder);
  if (!names) return 0;
  for (const std::string& name : *names) {
    struct stat st;
    if (::stat((folder + "/" + name).c_str(), &st) == 0) sum += static_cast<uint64_t>(st.st_size);
  }
  return sum;
}

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
    STASIS_ASSIGN(writer_, image::ImageWriter::Begin(dump_.store, name_));
    work_dir_ = WorkFolder(session_.services.paths, operation_.owner);
    return MakeDirs(work_dir_);
  };
  phase.undo = [this]() -> Status {
    if (!work_dir_.empty()) STASIS_TRY(RemoveTree(work_dir_));
    return writer_ ? writer_->Abort() : Status{};
  };
  return phase;
}

Phase DumpRun::TreeCheck() {
  Phase phase;
  phase.name = "tree-check";
  phase.run = [this](PhaseScope&) -> Status {
    STASIS_TRY(CheckUnchanged(survey_));
    return CheckStillOwn(survey_);
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
        if (committed && !Lots().empty()) committed = scope.Await(kDataWrite);
        if (committed) committed = scope.RunNested("commit");
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
  if (Status ended = EndAll(living_); !ended) return Annotate(std::move(ended), "end the program");
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
  phase.run = [this](PhaseScope&) -> Status {
    Survey stopped = survey_;
    STASIS_ASSIGN(stopped.tree, process::ReadTree(survey_.target.root.pid));
    stopped_.clear();
    living_.clear();
    for (const auto& member : stopped.tree.members) {
      stopped_.push_back(member.id);
      if (process::IsAlive(member)) living_.push_back(member.id);
    }
    STASIS_TRY(session_.journal->NoteMembers(living_));
    // Nobody changes who he is any more. What was written of somebody else goes with the folder.
    STASIS_TRY(CheckStillOwn(stopped));
    STASIS_ASSIGN(manifest_,
                  DescribeTarget(session_.services, stopped, dump_, stdio_, criu_version_));
    return {};
  };
  return phase;
}

// Asks nothing of the program, which may run by now, or have ended.
Status DumpRun::CommitImage(PhaseScope& scope) {
  STASIS_TRY(writer_->AddLogFile("criu-dump.log", LogPath()));
  image::Manifest& manifest = manifest_;
  STASIS_TRY(DescribeData(manifest));
  for (const PhaseReport& report : scope.Reports()) {
    manifest.phases.push_back({report.name, report.start_s, report.seconds, report.bytes, ""});
  }
  image::CommitOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    scope.ReportBytes(done, total);
    return !scope.deadline().passed();
  };
  STASIS_TRY(StoreAgentLibraries(*writer_, manifest));
  // It is all there now, and counted.
  STASIS_TRY(store::CheckImageLimit(dump_.store, session_.services.settings.most_image_bytes));
  STASIS_TRY(writer_->Commit(manifest, options));
  image_bytes_ = manifest.TotalBytes();
  added_bytes_ = manifest.AddedBytes();
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
  phase.name = "commit";
  phase.timeout = seconds(600);
  phase.commits = true;
  phase.run = [this](PhaseScope& scope) -> Status {
    Status status = CommitImage(scope);
    // The job's record comes after the image's rename: without it the image stands all the same.
    if (!status && writer_->committed()) {
      STASIS_TRY(ClearDumped());
      STASIS_TRY(store::DeleteImage(operation_.image));
    }
    return status;
  };
  return phase;
}

std::vector<Lot*> DumpRun::Lots() {
  std::vector<Lot*> lots;
  for (Lot& lot : shared_.lots()) lots.push_back(&lot);
  for (Lot& lot : stored_.lots()) lots.push_back(&lot);
  return lots;
}

Phase DumpRun::DataWrite() {
  Phase phase;
  phase.name = kDataWrite;
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    const uint64_t total = shared_.bytes() + stored_.bytes();
    STASIS_ASSIGN(auto credentials, process::ReadCredentials(survey_.target.root.pid));
    auto progress = [&](uint64_t done) {
      scope.ReportBytes(done, total);
      return !scope.deadline().passed() && !scope.Abandoned();
    };
    auto written = WriteLots(session_.services.paths, *writer_, Lots(),
                             HowToWrite(credentials.uid[1]), progress);
    if (!written) return CalledOff(scope, std::move(written).error());
    data_ = std::move(*written);
    scope.SetBytes(data_.blocks.stored_bytes);
    return {};
  };
  return phase;
}

// CRIU's pages, in the page cache until then. Asks nothing of the program, as the commit.
Phase DumpRun::CpuWrite() {
  Phase phase;
  phase.name = kCpuWrite;
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_ASSIGN(image::BlockSecret secret, BlockSecretOf(session_.services.paths));
    store::BlockWriterOptions how = HowToWrite(manifest_.job.uid);
    const uint64_t total = FolderBytes(writer_->cpu_path());
    how.progress = [&](uint64_t done) {
      scope.ReportBytes(std::min(done, total), total);
      return !scope.deadline().passed() && !scope.Abandoned();
    };
    auto written = store::WritePages(*writer_, image::BlockKey(secret), how);
    if (!written && written.error().code == Code::kCancelled) {
      return CalledOff(scope, TookTooLong());
    }
    if (!written) return Fail(std::move(written).error());
    pages_ = std::move(*written);
    scope.SetBytes(pages_.stored_bytes);
    return {};
  };
  return phase;
}

store::BlockWriterOptions DumpRun::HowToWrite(uint32_t uid) const {
  store::BlockWriterOptions how;
  how.compression = dump_.compression;
  how.packs.bytes = session_.services.settings.pack_bytes;
  how.share = !dump_.full;
  how.job_id = operation_.job;
  how.uid = uid;
  return how;
}

Status DumpRun::DescribeData(image::Manifest& manifest) {
  for (auto& p : manifest.processes) {
    for (const auto& recorded : operation_.device_processes) {
      if (recorded.id.pid.value != p.pid) continue;
      // The driver's share as of the survey, and exactly what the blocks hold.
      p.device_bytes =
          recorded.device_bytes + shared_.BytesOf(recorded.id) + stored_.BytesOf(recorded.id);
    }
  }
  data_.blocks.DescribeIn(manifest);
  pages_.DescribeIn(manifest);
  for (image::DeviceRange& range : manifest.ranges) {
    const std::string& uuid = data_.gpus[range.gpu].value;
    auto gpu = std::find_if(manifest.gpus.begin(), manifest.gpus.end(),
                            [&](const image::Gpu& g) { return g.uuid == uuid; });
    if (gpu == manifest.gpus.end()) {
      return Fail(Code::kInternal, "there is data of GPU " + uuid + ", which is not there");
    }
    range.gpu = static_cast<uint32_t>(gpu - manifest.gpus.begin());
  }
  return {};
}

// As it was before the dump.
Status DumpRun::GiveBackGpu() {
  STASIS_TRY(ReturnAllToRecordedState(session_.services, operation_.device_processes));
  return shared_.Return();
}

Phase DumpRun::CpuDump() {
  Phase phase;
  phase.name = kCpuDump;
  phase.timeout = seconds(900);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(RunCriu(scope));
    scope.SetBytes(dump_.leave_running ? FolderBytes(writer_->cpu_path()) : image_bytes_);
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
    scope.SetBytes(DriverBytes(operation_.device_processes, false));
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

std::string DumpRun::Settle() {
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

Plan DumpRun::MakePlan() {
  Services& services = session_.services;
  const Processes& processes = operation_.device_processes;
  Plan plan("dump");
  plan.Add(ImageBegin());
  if (!processes.empty()) {
    AddGpuAway(plan, services, processes, shared_, TreeCheck());
    plan.Add(GpuReleaseCheck(services, processes));
  }
  std::vector<Phase> beside;
  if (!Lots().empty()) beside.push_back(DataWrite());
  if (dump_.leave_running && !processes.empty()) {
    std::vector<Phase> program;
    program.push_back(CpuDump());
    program.push_back(GpuReturn());
    if (!shared_.empty()) program.push_back(DataFree());
    program.push_back(CpuWrite());
    beside.push_back(InOrder("program-back", std::move(program)));
  } else {
    beside.push_back(CpuDump());
  }
  plan.AddParallel(std::move(beside));
  if (dump_.leave_running && processes.empty()) plan.Add(CpuWrite());
  plan.Add(dump_.leave_running ? Commit() : AwaitEnd());
  Phase tidy;
  tidy.name = "tidy";
  tidy.run = [this](PhaseScope&) -> Status {
    STASIS_TRY(writer_->AfterCommit());
    if (!shared_.empty()) STASIS_TRY(shared_.DropArenas());
    if (!stored_.empty() && !dump_.leave_running) STASIS_TRY(stored_.DropArenas());
    return RemoveTree(work_dir_);
  };
  plan.Add(std::move(tidy));
  plan.OnFailureAfterCommit([this] { return Settle(); });
  return plan;
}

}  // namespace stasis::coordinator
