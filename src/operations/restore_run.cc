#include "operations/restore_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/secret.h"
#include "checkpoint/agent_files.h"
#include "checkpoint/image_data.h"
#include "checkpoint/image_source.h"
#include "checkpoint/teardown.h"
#include "device/hip/hip_driver.h"
#include "gpu_state/gpu_away.h"
#include "operations/hold_job.h"
#include "operations/recorded.h"
#include "store/image_ranges.h"

namespace stasis::operations {
namespace {

using device::ProcessState;
using gpu_state::GpuShard;
using plan::Operation;
using plan::Phase;
using plan::PhaseScope;
using plan::Plan;
using std::chrono::seconds;

// The kernel keeps a closed connection for a minute (TIME_WAIT), and its timer may be some seconds
// late.
constexpr seconds kPortsTimeout{75};
constexpr seconds kSwitchAnswerTime{60};
constexpr const char* kDataRead = "data-read";

}  // namespace

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
  base.target = options_.shown_as.empty() ? reader_.path() : options_.shown_as;
  base.image = reader_.path();
  base.job = job_;
  return base;
}

Phase RestoreRun::ImageVerify() {
  return {
      .name = "image-verify", .timeout = seconds(3600), .run = [this](PhaseScope& scope) -> Status {
        // Skips the units, which are checked when they are read: blocks by data-read, pages by
        // cpu-read and cpu-fill.
        auto report =
            reader_.Verify(store::VerifyLevel::kAllButUnits, [&](uint64_t done, uint64_t total) {
              scope.ReportBytes(done, total);
              return !scope.deadline().passed() && !scope.Abandoned();
            });
        if (!report && report.error().code == Code::kCancelled)
          return Fail(plan::WhyStopped(scope, plan::TookTooLong()));
        if (!report) return Fail(std::move(report).error());
        scope.SetBytes(report->bytes);
        STASIS_TRY(report->ToStatus(reader_.path()));
        // Needs no undo. The library stays, because other programs may use it too.
        const auto source = checkpoint::AgentSourceFor(reader_, session_.services.paths,
                                                       /*trusted=*/!options_.held);
        return checkpoint::PutBackAgentLibraries(reader_, source);
      }};
}

Phase RestoreRun::Ports() {
  return {.name = "ports", .timeout = kPortsTimeout, .run = [this](PhaseScope& scope) -> Status {
            STASIS_ASSIGN(auto freed, criu::FreeTcpPorts(ports_, scope.deadline(),
                                                         [&] { return scope.Cancelled(); }));
            if (!freed.waited_for.empty()) {
              notes_.push_back(
                  fmt::format("Waited {:.1f} s for port {}, which closed connections still held.",
                              freed.waited_s, freed.waited_for));
            }
            return {};
          }};
}

// Placeholders own the arenas, because the processes do not exist yet.
Status RestoreRun::AddExpectedData() {
  auto not_yet = [&](pid_t pid) {
    const auto& all = manifest().processes;
    auto p = std::find_if(all.begin(), all.end(), [&](const auto& process) {
      return process.pid == pid && process.is_cuda();
    });
    return p == all.end() ? process::ProcessId{} : gpu_state::SharedResume::ExpectedProcess(pid);
  };
  STASIS_ASSIGN(auto shards, checkpoint::ShardsIn(manifest(), not_yet, manifest().job.uid));
  for (const GpuShard& shard : shards) {
    if (shard.key.process.pid.value != 0) continue;
    return Fail(Code::kDataLoss, "the image has GPU data of a process that it does not contain");
  }
  shared_.ExpectShards(std::move(shards));
  // The memory is elsewhere, or a part of it is in arenas already.
  if (!has_data() || options_.ranges != nullptr || options_.ahead != nullptr) return {};
  if (session_.services.settings.restore_data == "arena") return {};
  auto secret = SecretOfHashes();
  if (!secret) {
    why_arenas_ = secret.error().ToString();
    return {};
  }
  names_.emplace(*secret);
  shared_.PreferSources(*secret);
  return {};
}

Result<BlockSecret> RestoreRun::SecretOfHashes() const {
  STASIS_ASSIGN(auto secret, FindJoinedSecret(session_.services.paths));
  if (!secret) {
    STASIS_ASSIGN(secret, FindBlockSecret(session_.services.paths));
  }
  if (!secret) return Fail(Code::kNotFound, "this user has no key for hashes");
  const std::string why = checkpoint::WhyNotByHash(manifest(), BlockKey(*secret).id());
  if (!why.empty()) return Fail(Code::kFailedPrecondition, why);
  return *secret;
}

bool RestoreRun::OverlapsDriver() {
  // CRIU loads plugins from one folder, which another plugin has for a held restore and for HIP.
  if (!has_data() || options_.held || is_hip()) return false;
  // CRIU opens the network before the plugin's hook: peers would see a late failure.
  if (WithRecorded(options_.criu, manifest()).tcp == criu::Tcp::kKeep) return false;
  // The driver frees the memory that is reserved for the second load on a GPU.
  std::set<device::GpuUuid> gpus;
  const auto& shards = shared_.shards();
  return std::all_of(shards.begin(), shards.end(), [&](const GpuShard& shard) {
    return gpus.insert(device::Mapped(map_, shard.key.gpu)).second;
  });
}

Status RestoreRun::AwaitData(PhaseScope& scope) const {
  if (!has_data()) return {};
  STASIS_TRY(scope.Await(kDataRead));
  // CRIU kills the tree of a held restore itself only up to this moment.
  const bool in_load = shared_.way() == gpu_state::SharedResume::Way::kSources;
  return in_load || options_.held ? scope.Await(gpu_state::SharedResume::kDataLoad) : Status();
}

Result<bool> RestoreRun::OpenSources(PhaseScope& scope) {
  using Way = gpu_state::SharedResume::Way;
  if (!names_) return false;
  for (GpuShard& shard : shared_.shards()) {
    STASIS_ASSIGN(shard.source, checkpoint::OpenSource(reader_, *names_, shard));
  }
  STASIS_TRY(scope.WaitUntil([this] { return shared_.way() != Way::kUnknown; }));
  if (shared_.way() == Way::kSources) {
    shared_.SetSourcesReady();
    scope.Changed();
    return true;
  }
  why_arenas_ = shared_.why_no_sources();
  for (GpuShard& shard : shared_.shards()) shard.source.reset();
  return false;
}

Status RestoreRun::ReadData(PhaseScope& scope) {
  STASIS_ASSIGN(const bool from_sources, OpenSources(scope));
  if (from_sources) return {};
  if (options_.ahead != nullptr) options_.ahead->MoveTo(shared_.shards());
  STASIS_TRY(Annotate(shared_.AllocateArenas(), WhyNotDirect()));
  scope.Changed();
  const uint64_t total = shared_.bytes();
  std::vector<GpuShard*> shards;
  for (GpuShard& shard : shared_.shards()) shards.push_back(&shard);
  auto progress = [&](uint64_t done) {
    scope.ReportBytes(done, total);
    return !scope.deadline().passed() && !scope.Abandoned();
  };
  const store::ImageRanges in_image(reader_);
  const store::RangeSource& source = options_.ranges != nullptr ? *options_.ranges : in_image;
  STASIS_TRY(checkpoint::ReadShards(source, shards, progress, [&] { scope.Changed(); }));
  scope.SetBytes(total);
  return {};
}

// Only a load through arenas needs host memory for all of the GPU data.
std::string RestoreRun::WhyNotDirect() const {
  std::string why = why_arenas_;
  if (why.empty() && options_.ranges != nullptr) why = "it comes from a repository or a migration";
  if (why.empty()) why = "restore.data is arena";
  return fmt::format("load the GPU data through host memory ({})", why);
}

Phase RestoreRun::DataRead() {
  return {.name = kDataRead,
          .timeout = seconds(3600),
          .run = [this](PhaseScope& scope) -> Status {
            Status read = ReadData(scope);
            if (read) return read;
            return Fail(plan::WhyStopped(scope, std::move(read).error()));
          },
          .undo = [this] { return shared_.Discard(); }};
}

Phase RestoreRun::DataBind() {
  return {.name = "data-bind",
          .run = [this](PhaseScope&) { return shared_.BindProcesses(returned_); },
          .undo = [this] { return shared_.Discard(); }};
}

Status RestoreRun::CheckOnGpu() const {
  for (const auto& p : processes_) {
    STASIS_ASSIGN(ProcessState state, session_.services.device->State(p.id.pid));
    if (state == ProcessState::kRunning) continue;
    return Fail(Code::kInternal,
                fmt::format("the driver reports process {} as {} after its restore", p.id.pid.value,
                            device::StateName(state)));
  }
  return {};
}

// A program without GPU data runs as soon as CRIU has restored it, and may have had little left to
// do.
bool RestoreRun::HasFinished() const {
  const bool root_ended = host_->root_ended() || !process::IsAlive(root_);
  return root_ended && host_->RootStatus(Deadline::In(kShimTimeout)) == 0;
}

// Names all processes that have ended, because it is unknown which of them ended first and caused
// the others to end.
Status RestoreRun::CheckNoneEnded() const {
  const bool root_ended = host_->root_ended() || !process::IsAlive(root_);
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
    error.hint = "One of them may have ended first and caused the end of the others.";
  }
  return Fail(std::move(error));
}

Status RestoreRun::CommitToShim() {
  if (!why_arenas_.empty()) {
    notes_.push_back("GPU data was loaded through arenas and checked by the CPU: " + why_arenas_ +
                     ".");
  }
  STASIS_TRY(RemoveTree(work_dir_));
  STASIS_TRY(shared_.ReturnArenas());
  // No deadline: if this process gave up and the shim committed nevertheless, the restore would be
  // reported as failed although the program is running. If the shim dies, this returns at
  // end-of-file.
  STASIS_TRY(host_->Commit(Deadline()));
  // The program runs from here on, whatever fails.
  if (!claim_) return {};
  if (!claim_->is_new() && !options_.log.empty()) {
    Status noted = store_.Update(job_, [&](jobs::Job& job) -> Status {
      job.log = options_.log;
      return {};
    });
    if (!noted) {
      notes_.push_back("the program is running and writes to " + options_.log +
                       ", but the job's record could not be changed: " + noted.error().ToString());
    }
  }
  claim_.reset();  // the job belongs to the program now
  if (has_terminal()) {
    notes_.push_back("The program has its own terminal: `stasis attach " + job_ + "` shows it.");
  }
  return {};
}

Phase RestoreRun::Adopt() {
  return {.name = "adopt",
          .run = [this](PhaseScope&) -> Status {
            Status on_gpu = CheckOnGpu();
            if (HasFinished()) return CommitToShim();
            // First report processes that have ended: the driver reports no state for them, and
            // that error would explain less.
            STASIS_TRY(CheckNoneEnded());
            STASIS_TRY(std::move(on_gpu));
            return CommitToShim();
          },
          .commits = true};
}

bool RestoreRun::is_hip() const {
  return device::hip::IsHipDriver(manifest().software.driver_kind);
}

bool RestoreRun::may_have_gates() const {
  return has_data() || !checkpoint::AgentOf(manifest()).empty();
}

Plan RestoreRun::MakePlan() {
  gpu_state::Services& services = session_.services;
  fills_cpu_memory_ = MayFillCpuMemory();
  overlaps_driver_ = OverlapsDriver();
  Plan plan("restore");
  if (!ports_.empty()) plan.Add(Ports());
  if (manifest().gpus.empty()) {
    plan.Add(ImageVerify());
    if (makes_cpu_files()) plan.Add(CpuRead());
    plan.Add(CpuRestore());
  } else {
    // The undo of cpu-restore kills the tree, which also undoes the driver's phases.
    gpu_state::GpuBack back{has_data() ? &shared_ : nullptr, map_, DriverBytes(manifest())};
    back.commits = false;
    back.without_driver = is_hip();
    back.programs.push_back(ImageVerify());
    if (makes_cpu_files()) back.programs.push_back(CpuRead());
    back.programs.push_back(CpuRestore());
    if (may_have_gates()) back.programs.push_back(DataBind());
    if (has_data()) {
      back.data_read = DataRead();
      if (overlaps_driver_) back.restore_within = kCpuRestore;
      back.driver_bytes_by_gpu = gpu_state::DriverBytesByGpu(RecordedProcesses(manifest()), map_);
    }
    gpu_state::AddGpuBack(plan, services, processes_, std::move(back));
    if (may_have_gates() && !has_data()) plan.Add(shared_.DataReturn());
  }
  if (options_.before_adopt && !manifest().gpus.empty()) {
    plan.Add({.name = "await-switch",
              .timeout = kSwitchAnswerTime,
              .keeps_timeout = true,
              .run = options_.before_adopt});
  }
  plan.Add(Adopt());
  plan.OnFailureAfterCommit([this] {
    return options_.held ? fmt::format("The program is running as process {}.", root_.pid.value)
                         : fmt::format("The program is running as process {}, job {}.",
                                       root_.pid.value, job_);
  });
  return plan;
}

}  // namespace stasis::operations
