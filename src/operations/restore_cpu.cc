// The phases of a restore that bring back the CPU side (RestoreRun).
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/file.h"
#include "checkpoint/program_pids.h"
#include "checkpoint/teardown.h"
#include "checks/image_trust.h"
#include "criu/amd_plugin.h"
#include "device/device_nodes.h"
#include "device/hip/criu_plugin.h"
#include "operations/held_restore.h"
#include "operations/recorded.h"
#include "operations/restore_run.h"

namespace stasis::operations {
namespace {

using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

constexpr const char* kCpuFill = "cpu-fill";

}  // namespace

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

Result<std::unique_ptr<criu::CriuSession>> RestoreRun::StartCriu(
    const criu::InheritPlan& inherit, const criu::RestoreRequest& request,
    const Deadline& deadline) {
  HostSpec spec;
  spec.criu_path = criu_path_;
  spec.plugins = request.options.plugins;
  spec.images_dir = request.images_dir;
  spec.images_are_copies = !cpu_files_.folder.empty();
  spec.log_path = request.log_path;
  spec.stops_at_end = overlaps_driver_;
  spec.shim.job_folder = store_.Folder(job_);
  spec.shim.network_right = request.options.tcp == criu::Tcp::kKeep;
  spec.shim.stdio.log = log_;
  if (log_ == store_.OwnLog(job_)) {
    spec.shim.stdio.keep_log_bytes = session_.services.settings.log_bytes;
    if (claim_->is_new() && !options_.earlier_log.empty()) {
      STASIS_TRY(ReplaceFile(log_, options_.earlier_log));
    }
  }
  // The new terminal has a default size. CRIU gives it the size of the old one.
  if (has_terminal()) spec.shim.stdio.terminal.emplace();
  for (const auto& [number, fd] : inherit.files) spec.shim.criu_fds[number] = fd.get();
  if (options_.new_pidns) {
    spec.shim.new_pidns = true;
    spec.shim.criu_pid = checkpoint::PidForCriu(manifest());
  }
  STASIS_ASSIGN(host_, session_.restore_hosts->Start(std::move(spec), deadline));
  STASIS_TRY(session_.journal->NoteRestored(host_->shim(), {}));
  return host_->ConnectCriu(deadline);
}

Status RestoreRun::CheckStoppedTree(process::HostPid root) const {
  STASIS_ASSIGN(auto tree, process::ReadTree(root));
  struct stat log;
  if (::stat(log_.c_str(), &log) != 0) return FailErrno(errno, "stat the log " + log_);
  return criu::AppendOnly(tree, FileId::Of(log));
}

Status RestoreRun::NoteRoot(process::HostPid root) {
  STASIS_ASSIGN(process::Stat stat, process::ReadStat(root));
  root_ = stat.id;
  STASIS_TRY(session_.journal->NoteRestored(host_->shim(), root_));
  // Uses its own deadline, because the phase's deadline may have passed during the wait for the
  // data.
  return host_->SetRoot(root_, Deadline::In(kShimTimeout));
}

Status RestoreRun::RenewDeviceNodes() const {
  STASIS_ASSIGN(const auto gpus, session_.services.device->Gpus());
  std::vector<int> minors;
  for (const auto& recorded : manifest().gpus) {
    const device::GpuUuid uuid = device::Mapped(map_, {recorded.uuid});
    for (const auto& gpu : gpus) {
      if (gpu.uuid == uuid && gpu.minor) minors.push_back(*gpu.minor);
    }
  }
  return device::RenewDeviceNodes(fmt::format("/proc/{}/root", root_.pid.value), minors);
}

Status RestoreRun::FindProcesses() {
  processes_ = RecordedProcesses(manifest());
  returned_.clear();
  if (processes_.empty()) return {};  // the program runs already, and may have finished
  STASIS_ASSIGN(const process::ProcessTree tree, process::ReadTree(root_.pid));
  for (const auto& p : manifest().processes) {
    if (!p.is_cuda()) continue;
    STASIS_ASSIGN(process::ProcessId id, checkpoint::FindRestored(p, tree));
    processes_[returned_.size()].id = id;
    returned_.push_back({p.pid, id});
  }
  return {};
}

Status RestoreRun::RunCriu(PhaseScope& scope) {
  STASIS_TRY(MakeDirs(work_dir_));
  criu::RestoreRequest request;
  request.images_dir = cpu_files_.folder.empty()
                           ? fmt::format("/proc/self/fd/{}/cpu", reader_.dir_fd())
                           : cpu_files_.folder;
  if (!options_.held) {
    STASIS_TRY(checks::CheckCpuFiles(request.images_dir, caller_, options_.trust_image));
  } else if (has_data()) {
    // All refusals must come before CRIU begins.
    STASIS_TRY(scope.Await(gpu_state::SharedResume::kLoadRoom));
  }
  request.log_path = work_dir_ + "/criu-restore.log";
  request.options = WithRecorded(options_.criu, manifest());
  if (is_hip()) {
    STASIS_ASSIGN(request.options.plugins,
                  device::hip::FindCriuPlugin(manifest().software.driver_kind));
  }
  STASIS_ASSIGN(criu::InheritPlan inherit, PlanOutput());
  STASIS_ASSIGN(
      auto criu,
      StartCriu(inherit, request, Deadline::Sooner(scope.deadline(), Deadline::In(kShimTimeout))));
  request.inherit = std::move(inherit.inherit);
  notes_.insert(notes_.end(), inherit.notes.begin(), inherit.notes.end());
  // CRIU calls this before any process of the program runs.
  auto stopped = [&](criu::Notification& notification) -> Status {
    switch (notification.moment) {
      case criu::Moment::kPostRestore:
        return OnRestored(scope, notification);
      case criu::Moment::kStopped:
        return OnStopped(scope, notification);
      default:
        return {};
    }
  };
  STASIS_ASSIGN(criu::RestoreLock lock, LockNetwork(request));
  auto pid = criu->Restore(request, stopped, scope.deadline());
  // If CRIU was killed, the kernel may let the program run although its data is not verified.
  if (!pid) KillRestored(root_);
  if (Status ended = lock.End(); !ended) {
    notes_.push_back(ended.error().ToString() + ".");
  }
  STASIS_TRY(pid);
  if (root_.pid != *pid) STASIS_TRY(NoteRoot(*pid));
  // CRIU ignores errors of plugins after it has restored the processes.
  if (is_hip()) STASIS_TRY(criu::CheckPluginRestore(request.log_path));
  STASIS_TRY(FindProcesses());
  if (overlaps_driver_ && !driver_has_restored_) return scope.RunNested(gpu_state::kGpuRestore);
  return {};
}

// A held restore's CRIU is in the network of its container.
Result<criu::RestoreLock> RestoreRun::LockNetwork(const criu::RestoreRequest& request) {
  if (options_.held || request.options.tcp != criu::Tcp::kKeep) return criu::RestoreLock();
  STASIS_ASSIGN(criu::RestoreLock lock, criu::RestoreLock::Make(request.images_dir));
  if (!lock.note().empty()) notes_.push_back(lock.note());
  return lock;
}

Status RestoreRun::OnRestored(PhaseScope& scope, const criu::Notification& notification) {
  if (options_.held) {
    // A held restore has no shim that kills the tree if CRIU is killed. Report the root now, so
    // that the thread that watches CRIU can kill the tree.
    STASIS_TRY(NoteRoot(notification.pid));
    STASIS_TRY(RenewDeviceNodes());
  }
  if (fills_cpu_memory_) {
    stopped_root_ = notification.pid;
    STASIS_TRY(scope.RunNested(kCpuFill));
  }
  if (!notification.stops_again) STASIS_TRY(AwaitData(scope));
  if (scope.Abandoned()) return Fail(plan::StoppedByOther());
  if (options_.held) return {};
  STASIS_TRY(CheckStoppedTree(notification.pid));
  STASIS_TRY(NoteRoot(notification.pid));
  const bool waits_here = options_.before_adopt && manifest().gpus.empty();
  return waits_here ? options_.before_adopt(scope) : Status();
}

Status RestoreRun::OnStopped(PhaseScope& scope, const criu::Notification& notification) {
  STASIS_TRY(FindProcesses());
  const std::vector<pid_t> threads = DriverThreads();
  if (!threads.empty()) {
    STASIS_TRY(notification.let_run(threads));
    STASIS_TRY(scope.RunNested(gpu_state::kGpuRestore));
    driver_has_restored_ = true;
  }
  STASIS_TRY(AwaitData(scope));
  return scope.Abandoned() ? Fail(plan::StoppedByOther()) : Status();
}

std::vector<pid_t> RestoreRun::DriverThreads() const {
  std::vector<pid_t> found;
  for (const auto& p : processes_) {
    const auto thread = session_.services.device->RestoreThread(p.id.pid);
    const auto threads = process::ReadThreads(p.id.pid);
    const bool is_own = thread && threads && *thread != p.id.pid.value &&
                        std::find(threads->begin(), threads->end(), *thread) != threads->end();
    if (!is_own) return {};
    found.push_back(*thread);
  }
  return found;
}

// Removes the work folder last, because it records where CRIU's files are.
Status RestoreRun::RemoveWork() {
  if (work_dir_.empty()) return {};
  STASIS_TRY(checkpoint::RemoveCpuFiles(session_.services.paths, owner_));
  return RemoveTree(work_dir_);
}

Status RestoreRun::EndRestored() {
  STASIS_TRY(RemoveWork());
  if (host_) {
    // If the shim was killed, it can no longer kill the tree.
    Status aborted = host_->Abort(Deadline::In(kShimTimeout));
    if (!aborted) STASIS_TRY(checkpoint::EndTree(host_->shim(), root_));
  }
  host_.reset();
  // If this fails, the next `stasis run` deletes the job, because the job has no program.
  if (claim_) (void)claim_->Discard();
  claim_.reset();
  return {};
}

bool RestoreRun::MayFillCpuMemory() const {
  // CRIU's plugin for AMD GPUs works on the program's memory before and after this moment.
  return checkpoint::NeedsCpuFiles(manifest()) && !options_.held && !is_hip() &&
         process::MemWriter::MayWrite();
}

// Unpacks CRIU's files from the image's pages.
Phase RestoreRun::CpuRead() {
  return {.name = "cpu-read",
          .timeout = seconds(3600),
          .run = [this](PhaseScope& scope) -> Status {
            // Wait until the arenas are allocated, so that these files cannot use up the host
            // memory for them.
            STASIS_TRY(scope.WaitUntil([this] { return shared_.has_arenas(); }));
            STASIS_TRY(MakeDirs(work_dir_));
            uint64_t bytes = 0;
            auto progress = [&](uint64_t done, uint64_t total) {
              bytes = done;
              scope.ReportBytes(done, total);
              return !scope.deadline().passed() && !scope.Abandoned();
            };
            auto made = checkpoint::MakeCpuFiles(reader_, session_.services.paths, owner_,
                                                 {ignore_memory_, fills_cpu_memory_}, progress);
            if (!made && made.error().code == Code::kCancelled)
              return Fail(plan::WhyStopped(scope, plan::TookTooLong()));
            if (!made) return Fail(std::move(made).error());
            cpu_files_ = std::move(*made);
            scope.SetBytes(bytes);
            return {};
          },
          .undo = [this] { return RemoveWork(); }};
}

Phase RestoreRun::CpuRestore() {
  Phase phase = {.name = kCpuRestore,
                 .timeout = seconds(600),
                 .run = [this](PhaseScope& scope) -> Status {
                   STASIS_TRY(RunCriu(scope));
                   scope.SetBytes(CpuBytes(manifest()));
                   // CRIU has read the files. Removing them frees their host memory for the
                   // program.
                   return checkpoint::RemoveCpuFiles(session_.services.paths, owner_);
                 },
                 .undo = [this] { return EndRestored(); }};
  if (fills_cpu_memory_) phase.nested.push_back(CpuFill());
  return phase;
}

// If the root was killed, another process may have its id. CRIU is a child of the shim, and the
// root is a child of one of both. No other program can start a process below them.
Status RestoreRun::CheckIsBelowShim(process::Stat at) const {
  for (int level = 0; level < 2; ++level) {
    if (at.parent == host_->shim().pid) return {};
    STASIS_ASSIGN(at, process::ReadStat(at.parent));
  }
  return Fail(Code::kUnavailable, "the restored program has ended");
}

// Writes the memory that CRIU's files lack.
Phase RestoreRun::CpuFill() {
  return {.name = kCpuFill, .timeout = seconds(3600), .run = [this](PhaseScope& scope) -> Status {
            if (!cpu_files_.direct) return {};  // CRIU has restored all memory
            STASIS_ASSIGN(const auto tree, process::ReadTree(stopped_root_));
            STASIS_TRY(CheckIsBelowShim(tree.root()));
            auto progress = [&](uint64_t done, uint64_t total) {
              scope.ReportBytes(done, total);
              return !scope.deadline().passed() && !scope.Abandoned();
            };
            process::MemWriter writer;
            Status written = cpu_files_.direct->Write(tree, writer, progress);
            if (!written && written.error().code == Code::kCancelled)
              return Fail(plan::WhyStopped(scope, plan::TookTooLong()));
            STASIS_TRY(std::move(written));
            scope.SetBytes(cpu_files_.direct->bytes());
            cpu_files_.direct.reset();
            return {};
          }};
}

}  // namespace stasis::operations
