#include "operations/restore_run.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/file.h"
#include "checkpoint/agent_files.h"
#include "checkpoint/image_data.h"
#include "checkpoint/program_pids.h"
#include "checkpoint/teardown.h"
#include "checks/image_trust.h"
#include "checks/nccl_neighbours.h"
#include "criu/inside.h"
#include "gpu_state/gpu_away.h"
#include "operations/hold_job.h"

namespace stasis::operations {
namespace {

using device::ProcessState;
using gpu_state::Lot;
using gpu_state::Processes;
using plan::Operation;
using plan::Phase;
using plan::PhaseScope;
using plan::Plan;
using std::chrono::seconds;

constexpr seconds kShimTimeout{20};
// The kernel remembers a closed connection for a minute, by a timer that ends a few seconds late.
constexpr seconds kPortsTimeout{75};
constexpr const char* kDataRead = "data-read";

// Of one process's GPU memory, what is in the image's blocks.
uint64_t RangeBytes(const store::Manifest& manifest, pid_t pid) {
  uint64_t sum = 0;
  for (const auto& range : manifest.ranges) sum += range.pid == pid ? range.size_bytes : 0;
  return sum;
}

// The rest.
uint64_t DriverBytes(const store::Manifest& manifest, const store::Process& p) {
  return p.device_bytes - std::min(p.device_bytes, RangeBytes(manifest, p.pid));
}

}  // namespace

criu::Options WithRecorded(criu::Options options, const store::Manifest& manifest) {
  auto tcp = criu::ParseTcp(manifest.criu.tcp);
  if (options.tcp == criu::Tcp::kRefuse && tcp) options.tcp = *tcp;
  options.file_locks |= manifest.criu.file_locks;
  options.link_remap |= manifest.criu.link_remap;
  options.shell_job |= manifest.criu.shell_job;
  return options;
}

uint64_t CpuBytes(const store::Manifest& manifest) {
  uint64_t sum = 0;
  for (const auto& file : manifest.files) {
    sum += file.path.starts_with("cpu/") ? file.size_bytes : 0;
  }
  for (const auto& file : manifest.page_files) sum += file.size_bytes;
  return sum;
}

uint64_t RestoreRun::driver_bytes() const {
  uint64_t sum = 0;
  for (const auto& p : manifest().processes) sum += DriverBytes(manifest(), p);
  return sum;
}

Status RestoreRun::ClaimJob() {
  if (claim_) {
    job_ = claim_->job().id;
    log_ = options_.log.empty() ? claim_->job().log : options_.log;
    return {};
  }
  jobs::NewJob job;
  job.id = WantedJob(options_, manifest());
  job.argv = manifest().job.argv;
  job.cwd = manifest().job.working_directory;
  job.log = options_.log;
  job.agent = checkpoint::AgentOf(manifest());
  job.most_jobs = session_.services.settings.most_jobs;
  STASIS_ASSIGN(claim_, store_.Create(job));
  job_ = claim_->job().id;
  log_ = claim_->job().log;
  return {};
}

Operation RestoreRun::MakeOperation(Operation base) {
  owner_ = base.owner;
  work_dir_ = checkpoint::WorkFolder(session_.services.paths, owner_);
  base.target = reader_.path();
  base.image = reader_.path();
  base.job = job_;
  return base;
}

Phase RestoreRun::ImageVerify() {
  Phase phase;
  phase.name = "image-verify";
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    // The blocks are checked by data-read.
    auto report =
        reader_.Verify(store::VerifyLevel::kAllButUnits, [&](uint64_t done, uint64_t total) {
          scope.ReportBytes(done, total);
          return !scope.deadline().passed() && !scope.Abandoned();
        });
    if (!report && report.error().code == Code::kCancelled)
      return plan::CalledOff(scope, plan::TookTooLong());
    if (!report) return Fail(std::move(report).error());
    scope.SetBytes(report->bytes);
    STASIS_TRY(report->ToStatus(reader_.path()));
    // Needs no undo: it is the same for every program that was started with it, and stays.
    return checkpoint::PutBackAgentLibraries(reader_);
  };
  return phase;
}

Status RestoreRun::LookAtNetwork() {
  // A network namespace that is in the image comes without anything in it: nothing meets ours.
  for (const auto& file : manifest().files) {
    if (file.path.starts_with("cpu/netns-")) return {};
  }
  auto not_looked_at = [&](const char* what, const Error& why) -> Status {
    notes_.push_back(std::string(what) + " were not looked at: " + why.ToString() + ".");
    return {};
  };
  constexpr char kAll[] = "The ports of the program, and jobs with NCCL beside it,";
  auto files = reader_.OpenFile("cpu/files.img");
  // What is not readable is image-verify's to name.
  if (!files) return not_looked_at(kAll, files.error());
  auto nccl = checks::HasCommunicators(files->fd.get(), files->size_bytes);
  if (!nccl) return not_looked_at(kAll, nccl.error());
  if (*nccl) {
    STASIS_TRY(checks::RefuseNcclNeighbours(
        session_.services, manifest(), map_,
        "suspend the other job first, without --keep-context, or end it"));
  }
  auto ports = criu::TcpPortsToBind(files->fd.get(), files->size_bytes);
  if (!ports) return not_looked_at("The ports of the program", ports.error());
  ports_ = std::move(*ports);
  return {};
}

Phase RestoreRun::Ports() {
  Phase phase;
  phase.name = "ports";
  phase.timeout = kPortsTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_ASSIGN(auto freed,
                  criu::FreeTcpPorts(ports_, scope.deadline(), [&] { return scope.Cancelled(); }));
    if (!freed.waited_for.empty()) {
      notes_.push_back(
          fmt::format("Waited {:.1f} s for the port {}, which connections that were "
                      "closed still held.",
                      freed.waited_s, freed.waited_for));
    }
    return {};
  };
  return phase;
}

Result<criu::InheritPlan> RestoreRun::PlanOutput() const {
  std::vector<criu::ExternalFd> externals;
  for (const auto& e : manifest().externals) {
    externals.push_back({e.key, e.kind, {e.pid}, e.fd, e.direction, e.path});
  }
  criu::Replacements replacements;
  replacements.output.assign(std::begin(shim::kCriuOutputFds), std::end(shim::kCriuOutputFds));
  replacements.all_to_log = !options_.log.empty();
  replacements.null.assign(std::begin(shim::kCriuNullFds), std::end(shim::kCriuNullFds));
  replacements.terminal.assign(std::begin(shim::kCriuTerminalFds),
                               std::end(shim::kCriuTerminalFds));
  return criu::PlanInherit(externals, replacements);
}

Result<criu::Session> RestoreRun::StartCriu(criu::InheritPlan& inherit,
                                            const criu::RestoreRequest& request,
                                            const Deadline& deadline) {
  jobs::RestoreSpec spec;
  spec.job_folder = store_.Folder(job_);
  spec.stdio.log = log_;
  if (log_ == store_.OwnLog(job_)) spec.stdio.keep_log_bytes = session_.services.settings.log_bytes;
  // The size is the old one's, which CRIU sets.
  if (has_terminal()) spec.stdio.terminal.emplace();
  for (const auto& [number, fd] : inherit.files) spec.criu_fds[number] = fd.get();
  auto start = [&](const auto& command) -> Status {
    spec.criu_argv = command.argv;
    spec.criu_env = command.env;
    STASIS_ASSIGN(shim_, jobs::RestoreShim::Start(spec, deadline));
    return session_.journal->NoteRestored(shim_->shim(), {});
  };
  if (options_.new_pidns) {
    STASIS_ASSIGN(auto inside,
                  criu::Inside::Make(criu_path_, request.images_dir, request.log_path));
    spec.new_pidns = true;
    spec.criu_pid = checkpoint::PidForCriu(manifest());
    spec.criu_fds.merge(inside.fds());
    STASIS_TRY(start(inside.command()));
    return inside.Accept(deadline);
  }
  STASIS_ASSIGN(criu::SocketPair pair, criu::MakeSocketPair());
  spec.criu_fds[criu::SwrkCommand::kSocketFd] = pair.criu.get();
  STASIS_TRY(start(criu::MakeSwrkCommand(criu_path_)));
  return criu::Session::OverSocket(std::move(pair.ours), shim_->criu());
}

Status RestoreRun::RunCriu(PhaseScope& scope) {
  STASIS_TRY(MakeDirs(work_dir_));
  criu::RestoreRequest request;
  request.images_dir = cpu_files_.folder.empty()
                           ? fmt::format("/proc/self/fd/{}/cpu", reader_.dir_fd())
                           : cpu_files_.folder;
  STASIS_TRY(checks::CheckCpuFiles(request.images_dir, caller_, options_.trust_image));
  request.log_path = work_dir_ + "/criu-restore.log";
  request.options = WithRecorded(options_.criu, manifest());
  STASIS_ASSIGN(criu::InheritPlan inherit, PlanOutput());
  STASIS_ASSIGN(
      criu::Session criu,
      StartCriu(inherit, request, Deadline::Sooner(scope.deadline(), Deadline::In(kShimTimeout))));
  request.inherit = std::move(inherit.inherit);
  notes_.insert(notes_.end(), inherit.notes.begin(), inherit.notes.end());
  // Nobody of the program has run yet.
  auto stopped = [&](process::HostPid pid) -> Status {
    STASIS_ASSIGN(auto tree, process::ReadTree(pid));
    struct stat log;
    if (::stat(log_.c_str(), &log) != 0) return FailErrno(errno, "look at the log " + log_);
    return criu::AppendOnly(tree, FileId::Of(log));
  };
  auto note_root = [&](process::HostPid pid) -> Status {
    STASIS_ASSIGN(process::Stat stat, process::ReadStat(pid));
    root_ = stat.id;
    STASIS_TRY(session_.journal->NoteRestored(shim_->shim(), root_));
    // A time of its own: what this phase had may have gone by in waiting for the data.
    return shim_->SetRoot(root_, Deadline::In(kShimTimeout));
  };
  STASIS_ASSIGN(process::HostPid pid, criu.Restore(
                                          request,
                                          [&](criu::Notification& notification) -> Status {
                                            if (notification.moment != criu::Moment::kPostRestore)
                                              return {};
                                            if (has_data()) STASIS_TRY(scope.Await(kDataRead));
                                            if (scope.Abandoned())
                                              return Fail(Code::kCancelled, "called off");
                                            STASIS_TRY(stopped(notification.pid));
                                            return note_root(notification.pid);
                                          },
                                          scope.deadline()));
  if (root_.pid != pid) STASIS_TRY(note_root(pid));
  processes_ = Recorded();
  returned_.clear();
  for (const auto& p : manifest().processes) {
    if (!p.is_cuda()) continue;
    STASIS_ASSIGN(process::ProcessId id, checkpoint::FindRestored(p, root_));
    processes_[returned_.size()].id = id;
    returned_.push_back({p.pid, id});
  }
  return {};
}

// Those that use a GPU, as if they had started at no time.
Processes RestoreRun::Recorded() const {
  Processes recorded;
  for (const auto& p : manifest().processes) {
    if (!p.is_cuda()) continue;
    recorded.push_back({{{p.pid}, 0}, ProcessState::kCheckpointed, {}, DriverBytes(manifest(), p)});
    for (const auto& uuid : p.gpu_uuids) recorded.back().gpus.push_back({uuid});
  }
  return recorded;
}

// The folder says where the files are: it goes last.
Status RestoreRun::RemoveWork() {
  if (work_dir_.empty()) return {};
  STASIS_TRY(checkpoint::RemoveCpuFiles(session_.services.paths, owner_));
  return RemoveTree(work_dir_);
}

Status RestoreRun::TakeDown() {
  STASIS_TRY(RemoveWork());
  if (shim_) {
    // A shim that was killed itself can take nothing down any more.
    Status aborted = shim_->Abort(Deadline::In(kShimTimeout));
    if (!aborted) STASIS_TRY(checkpoint::EndTree(shim_->shim(), root_));
  }
  shim_.reset();
  // A job that nobody started is swept by the next `run`.
  if (claim_) (void)claim_->Discard();
  claim_.reset();
  return {};
}

// CRIU's files, where CPU memory is in packs.
Phase RestoreRun::CpuRead() {
  Phase phase;
  phase.name = "cpu-read";
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    // What the GPU's data takes of the memory is not there for these files.
    STASIS_TRY(scope.WaitUntil([this] { return shared_.has_arenas(); }));
    STASIS_TRY(MakeDirs(work_dir_));
    uint64_t bytes = 0;
    auto progress = [&](uint64_t done, uint64_t total) {
      bytes = done;
      scope.ReportBytes(done, total);
      return !scope.deadline().passed() && !scope.Abandoned();
    };
    auto made = checkpoint::MakeCpuFiles(reader_, session_.services.paths, owner_, ignore_memory_,
                                         progress);
    if (!made && made.error().code == Code::kCancelled)
      return plan::CalledOff(scope, plan::TookTooLong());
    if (!made) return Fail(std::move(made).error());
    cpu_files_ = std::move(*made);
    scope.SetBytes(bytes);
    return {};
  };
  phase.undo = [this] { return RemoveWork(); };
  return phase;
}

Phase RestoreRun::CpuRestore() {
  Phase phase;
  phase.name = "cpu-restore";
  phase.timeout = seconds(600);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(RunCriu(scope));
    scope.SetBytes(CpuBytes(manifest()));
    // It has read them: they are memory that the program can use.
    return checkpoint::RemoveCpuFiles(session_.services.paths, owner_);
  };
  phase.undo = [this] { return TakeDown(); };
  return phase;
}

// The processes are not there yet: the arenas belong to one of their number that started at no
// time.
Status RestoreRun::ExpectData() {
  auto not_yet = [&](pid_t pid) {
    const auto& all = manifest().processes;
    auto p = std::find_if(all.begin(), all.end(), [&](const auto& process) {
      return process.pid == pid && process.is_cuda();
    });
    return p == all.end() ? process::ProcessId{} : process::ProcessId{{pid}, 0};
  };
  STASIS_ASSIGN(auto lots, checkpoint::LotsIn(manifest(), not_yet, manifest().job.uid));
  for (const Lot& lot : lots) {
    if (lot.key.process.pid.value != 0) continue;
    return Fail(Code::kDataLoss, "the image has GPU data of a process that is not in it");
  }
  shared_.Expect(std::move(lots));
  return {};
}

Status RestoreRun::ReadData(PhaseScope& scope) {
  STASIS_TRY(shared_.MakeArenas());
  scope.Changed();
  const uint64_t total = shared_.bytes();
  std::vector<Lot*> lots;
  for (Lot& lot : shared_.lots()) lots.push_back(&lot);
  auto progress = [&](uint64_t done) {
    scope.ReportBytes(done, total);
    return !scope.deadline().passed() && !scope.Abandoned();
  };
  STASIS_TRY(checkpoint::ReadLots(reader_, lots, progress, [&] { scope.Changed(); }));
  scope.SetBytes(total);
  return {};
}

Phase RestoreRun::DataRead() {
  Phase phase;
  phase.name = kDataRead;
  phase.timeout = seconds(3600);
  phase.run = [this](PhaseScope& scope) -> Status {
    Status read = ReadData(scope);
    return read ? std::move(read) : plan::CalledOff(scope, std::move(read).error());
  };
  phase.undo = [this] { return shared_.CallOff(); };
  return phase;
}

Phase RestoreRun::DataBind() {
  Phase phase;
  phase.name = "data-bind";
  phase.run = [this](PhaseScope&) { return shared_.Bind(returned_); };
  phase.undo = [this] { return shared_.CallOff(); };
  return phase;
}

Status RestoreRun::CheckOnGpu() const {
  for (const auto& p : processes_) {
    STASIS_ASSIGN(ProcessState state, session_.services.device->State(p.id.pid));
    if (state == ProcessState::kRunning) continue;
    return Fail(Code::kInternal, fmt::format("process {} has a GPU state of {} after its restore",
                                             p.id.pid.value, device::StateName(state)));
  }
  return {};
}

// All are named: they run by now, so that one may have ended because another did, and which was the
// first cannot be seen afterwards.
Status RestoreRun::CheckNoneEnded() const {
  const bool root_ended = shim_->root_ended() || !process::IsAlive(root_);
  std::vector<pid_t> ended;
  if (root_ended) ended.push_back(root_.pid.value);
  for (const auto& p : processes_) {
    if (p.id != root_ && !process::IsAlive(p.id)) ended.push_back(p.id.pid.value);
  }
  if (ended.empty()) return {};
  Error error{Code::kUnavailable};
  error.message = fmt::format("{} ended right after the restore: process {}",
                              root_ended ? "the program" : "a part of the program",
                              fmt::join(ended, ", process "));
  if (ended.size() > 1) {
    error.hint = "Any of them may have been the first, and the others have followed.";
  }
  return Fail(std::move(error));
}

Phase RestoreRun::Adopt() {
  Phase phase;
  phase.name = "adopt";
  phase.commits = true;
  phase.run = [this](PhaseScope&) -> Status {
    Status run = CheckOnGpu();
    // The driver does not know one that ends: then this is why.
    STASIS_TRY(CheckNoneEnded());
    STASIS_TRY(std::move(run));
    STASIS_TRY(RemoveTree(work_dir_));
    STASIS_TRY(shared_.DropArenas());
    // No deadline: a commit that we gave up and that happens all the same would leave two truths. A
    // shim that dies shows as an end of file.
    STASIS_TRY(shim_->Commit(Deadline()));
    // It runs, whatever fails from here on.
    if (!claim_->is_new() && !options_.log.empty()) {
      Status noted = store_.Update(job_, [&](jobs::Job& job) -> Status {
        job.log = options_.log;
        return {};
      });
      if (!noted) {
        notes_.push_back("it runs and writes to " + options_.log +
                         ", but the job does not say so: " + noted.error().ToString());
      }
    }
    claim_.reset();  // the job is the program's now
    if (has_terminal()) {
      notes_.push_back("It has a terminal of its own: `stasis attach " + job_ + "` shows it.");
    }
    return {};
  };
  return phase;
}

bool RestoreRun::may_have_gates() const {
  return has_data() || !checkpoint::AgentOf(manifest()).empty();
}

Plan RestoreRun::MakePlan() {
  gpu_state::Services& services = session_.services;
  Plan plan("restore");
  if (!ports_.empty()) plan.Add(Ports());
  if (manifest().gpus.empty()) {
    plan.Add(ImageVerify());
    if (makes_cpu_files()) plan.Add(CpuRead());
    plan.Add(CpuRestore());
  } else {
    // The driver's phases are undone by taking the whole tree down.
    gpu_state::GpuBack back{has_data() ? &shared_ : nullptr, map_, driver_bytes()};
    back.commits = false;
    back.programs.push_back(ImageVerify());
    if (makes_cpu_files()) back.programs.push_back(CpuRead());
    back.programs.push_back(CpuRestore());
    if (may_have_gates()) back.programs.push_back(DataBind());
    if (has_data()) {
      back.data_read = DataRead();
      back.driver_bytes_by_gpu = gpu_state::DriverBytesByGpu(Recorded(), map_);
    }
    gpu_state::AddGpuBack(plan, services, processes_, std::move(back));
    if (may_have_gates() && !has_data()) plan.Add(shared_.DataReturn());
  }
  plan.Add(Adopt());
  plan.OnFailureAfterCommit([this] {
    return fmt::format("The program runs as process {}, job {}.", root_.pid.value, job_);
  });
  return plan;
}

}  // namespace stasis::operations
