#include "gpu_state/shared_suspend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "device/inspect.h"
#include "gpu_state/close_gates.h"
#include "gpu_state/precopy.h"
#include "gpu_state/return_memory.h"
#include "plan/plan.h"

namespace stasis::gpu_state {
namespace {

using device::GpuUuid;
using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

constexpr seconds kRepairTimeout{120};  // of movers after a copy that was interrupted
constexpr seconds kGateTimeout{30};     // like the driver's lock: submitted work has to end
constexpr seconds kAgentTimeout{60};    // long enough for lists of a million pieces
constexpr seconds kSaveTimeout{600};
constexpr seconds kSaveToDiskTimeout{3600};
constexpr uint64_t kSlowestDisk = 50'000'000;  // bytes per second

constexpr const char* kUndoGroup = "memory";

GpuUuid Same(const GpuUuid& gpu) { return gpu; }

}  // namespace

Result<std::unique_ptr<SharedSuspend>> SharedSuspend::Create(Services& services,
                                                             const Processes& processes,
                                                             const AwayOptions& options) {
  STASIS_ASSIGN(auto found, FindSharedMembers(*services.agents, processes, options));
  STASIS_TRY(CheckPeers(found.members));
  if (!options.assume_unshared) STASIS_TRY(CheckSharingSeen(found.unseen));
  if (auto unseen = UnseenSharing(found.unseen)) found.left_to_driver.push_back(*unseen);
  return std::unique_ptr<SharedSuspend>(new SharedSuspend(services, options, std::move(found)));
}

SharedSuspend::~SharedSuspend() { AbandonArenas(); }

Saved SharedSuspend::saved() const {
  std::lock_guard lock(mutex_);
  return saved_;
}

std::vector<std::string> SharedSuspend::notes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> notes;
  for (const auto& [gpu, why] : why_unhashed_) {
    notes.push_back(fmt::format(
        "GPU {} did not search for zero and unchanged memory, so all of it was copied: {}",
        gpu.value, why));
  }
  if (!why_not_precopied_.empty()) {
    notes.push_back("GPU data was not copied ahead while the program ran: " + why_not_precopied_);
  }
  if (!overflow_.empty()) notes.push_back(overflow_);
  return notes;
}

// Without hashes everything is copied, and a dump computes them on the CPU.
Status SharedSuspend::ForEachMember(const std::function<Status(Member&)>& step) {
  return InParallel(members_.size(), [&](size_t i) {
    return Annotate(step(members_[i]), fmt::format("process {}", members_[i].id.pid.value));
  });
}

// Returns true if programs share GPU memory or use NCCL, which shares host memory that agents do
// not see.
Result<bool> SharedSuspend::MayWaitForEachOther() const {
  if (members_.size() < 2) return false;
  for (const Member& member : members_) {
    if (member.agent->hello().ipc_peer_count != 0) return true;
  }
  std::atomic<bool> may = false;
  STASIS_TRY(InParallel(members_.size(), [&](size_t i) -> Status {
    STASIS_ASSIGN(auto findings, device::Inspect(members_[i].id.pid));
    if (!findings.empty()) may = true;
    return {};
  }));
  return may.load();
}

Status SharedSuspend::CloseAllGates(const Deadline& deadline) {
  using Floor = agent_client::AgentLink::Floor;
  // A small stack limit halves the data that the driver saves, but setting it takes time too, so
  // leave it as it is if the driver saves nothing.
  const bool keep = options_.keep_stack_limits || options_.keep_context;
  std::vector<GateOwner> owners;
  for (Member& member : members_) {
    member.touched = true;
    owners.push_back({fmt::format("process {}", member.id.pid.value), member.agent.get()});
  }
  STASIS_ASSIGN(bool together, MayWaitForEachOther());
  STASIS_TRY(CloseGates(owners, together, keep ? Floor::kKeep : Floor::kLower, deadline));
  // Check again: until the last gate was closed, a program may have opened memory of a process that
  // is not a member.
  STASIS_TRY(ForEachMember([&](Member& member) -> Status {
    STASIS_TRY(member.agent->Status(TimeLeft(deadline, kAgentTimeout)));
    return {};
  }));
  return CheckPeers(members_);
}

Phase SharedSuspend::GateClose() {
  return {.name = "gate-close",
          .timeout = kGateTimeout,
          .run = [this](PhaseScope& scope) { return CloseAllGates(scope.deadline()); },
          .undo = [this] { return ReturnMemory(); },
          .undo_group = kUndoGroup};
}

// Replaces the shards, which are estimates or describe the memory before the gates closed, by the
// exported memory.
Status SharedSuspend::ExportAll(Gates gates, const Deadline& deadline) {
  STASIS_TRY(ForEachMember([&](Member& member) -> Status {
    const auto left = TimeLeft(deadline, kAgentTimeout);
    STASIS_ASSIGN(member.data, gates == Gates::kOpen ? member.agent->ExportRunning(left)
                                                     : member.agent->ExportAll(left));
    return {};
  }));
  for (GpuShard& shard : shards_) {
    shard.ranges.clear();
    shard.places.clear();
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    STASIS_ASSIGN(auto shards, ShardsOf(member.id, member.owner, i, member.data.ranges));
    for (GpuShard& shard : shards) {
      auto estimate = std::find_if(shards_.begin(), shards_.end(),
                                   [&](const GpuShard& s) { return s.key == shard.key; });
      if (estimate == shards_.end()) {
        return Fail(Code::kAborted,
                    fmt::format("process {} allocated memory on another GPU while it was being "
                                "stopped",
                                member.id.pid.value),
                    "try again");
      }
      STASIS_TRY(store_->Reshape(*estimate->arena, shard.ranges));
      estimate->ranges = std::move(shard.ranges);
      estimate->places = std::move(shard.places);
    }
  }
  // A GPU on which all memory was freed since the arenas were allocated has nothing to save.
  for (GpuShard& shard : shards_) {
    if (shard.places.empty()) STASIS_TRY(store_->Reshape(*shard.arena, {}));
  }
  return {};
}

bool SharedSuspend::CanPrecopy() const {
  auto exports = [](const Member& member) { return member.agent->exports_running(); };
  auto in_memory = [](const GpuShard& shard) { return shard.arena->in_memory(); };
  std::lock_guard lock(mutex_);
  return secret_ && why_unhashed_.empty() &&
         std::all_of(members_.begin(), members_.end(), exports) &&
         std::all_of(shards_.begin(), shards_.end(), in_memory);
}

// Returns one result for each shard.
Result<std::vector<Precopied>> SharedSuspend::PrecopyAll(PhaseScope& scope) {
  STASIS_TRY(ExportAll(Gates::kOpen, scope.deadline()));
  const uint64_t total = bytes();
  std::atomic<uint64_t> before{0};
  std::vector<Precopied> precopied(shards_.size());
  auto copy = [&](const GpuUuid& gpu, std::vector<GpuShard*>& shards) -> Status {
    dataplane::MoverLink& mover = services_.movers->MoverOf(gpu);
    for (GpuShard* shard : shards) {
      if (shard->ranges.empty()) continue;
      STASIS_TRY(mover.Attach(*shard->arena, scope.deadline()));
      auto progress = [&](uint64_t done) { scope.ReportBytes(before + done, total); };
      auto& result = precopied[static_cast<size_t>(shard - shards_.data())];
      STASIS_ASSIGN(result,
                    Precopy(*shard, Descriptors(*shard), mover, *key_, progress, scope.deadline()));
      before += shard->bytes();
      for (size_t place : shard->places) members_[shard->member].data.fds[place].Reset();
    }
    return {};
  };
  STASIS_TRY(ForEachGpu(shards_, Same, copy));
  return precopied;
}

// Tells the agents that no descriptor of a running program's memory is open any more.
Status SharedSuspend::EndPrecopy() {
  for (Member& member : members_) member.data = {};
  return ForEachMember([](Member& member) -> Status {
    STASIS_TRY(member.agent->Status(kAgentAnswer));
    return {};
  });
}

// A connection may be in the middle of an answer, and a mover may have been killed. Both must work
// again before the gates close.
Status SharedSuspend::RepairAfterPrecopy(const Deadline& deadline) {
  STASIS_TRY(ForEachMember([&](Member& member) -> Status {
    member.data = {};
    member.agent.reset();
    STASIS_ASSIGN(member.agent, FindAgent(*services_.agents, member.id, kAgentAnswer));
    if (member.agent) return {};
    return Fail(Code::kUnavailable, "its agent can no longer be found");
  }));
  return PrepareMovers(deadline);
}

Phase SharedSuspend::DataPrecopy() {
  return {.name = "data-precopy",
          // The time limit depends on the size, because the first touch of the arena's memory is
          // the slowest part.
          .timeout = kAgentTimeout + seconds(bytes() >> 30),
          .run = [this](PhaseScope& scope) -> Status {
            if (!CanPrecopy()) return {};
            auto precopied = PrecopyAll(scope);
            Status done = precopied ? EndPrecopy() : Fail(precopied.error());
            if (!done) STASIS_TRY(RepairAfterPrecopy(Deadline::In(kRepairTimeout)));
            const BlockKey key(*secret_);
            auto go_on = [&] { return !scope.Cancelled() && !scope.deadline().passed(); };
            uint64_t copied = 0;
            for (size_t i = 0; done && i < shards_.size(); ++i) {
              copied += (*precopied)[i].bytes;
              if ((*precopied)[i].copied.empty()) continue;
              done = HashPrecopied(shards_[i], std::move((*precopied)[i]), key, go_on);
            }
            scope.SetBytes(copied);
            if (!done) why_not_precopied_ = done.error().ToString();
            return {};
          }};
}

// Corrects the driver's share of a process. Leaves it unchanged if the driver or the agent does not
// answer.
void SharedSuspend::CorrectShare(Member& member, plan::RecordedProcess& process) {
  auto stat = process::ReadStat(process.id.pid);
  if (!stat || stat->id != process.id) return;
  const auto driver = services_.device->Driver();
  const auto found = services_.device->FindProcesses({{*stat}});
  const auto status = member.agent->Status(kAgentTimeout);
  if (!driver || !found || found->empty() || !status) return;
  uint64_t bytes = found->front().device_bytes;
  if (bytes == 0) return;  // unknown
  // Correct the driver's figure for shared memory as the survey does.
  if (driver->counts_imported) {
    bytes -= std::min(bytes, status->ipc_bytes);
  } else {
    bytes += status->imported_bytes;
  }
  process.device_bytes = bytes - std::min(bytes, BytesOf(process.id));
}

Phase SharedSuspend::DataExport(std::vector<plan::RecordedProcess>* processes) {
  std::map<process::ProcessId, uint64_t> before;
  for (const Member& member : members_) before[member.id] = BytesOf(member.id);
  auto run = [this, processes, before](PhaseScope& scope) -> Status {
    STASIS_TRY(ExportAll(Gates::kClosed, scope.deadline()));
    if (processes == nullptr) return {};
    for (Member& member : members_) {
      if (BytesOf(member.id) == before.at(member.id)) continue;
      for (plan::RecordedProcess& process : *processes) {
        if (process.id == member.id && !process.context_kept) CorrectShare(member, process);
      }
    }
    return {};
  };
  return {.name = "data-export",
          .timeout = kAgentTimeout,
          .run = std::move(run),
          .undo = [this] { return ReturnMemory(); },
          .undo_group = kUndoGroup};
}

Phase SharedSuspend::DataRelease() {
  return {.name = "data-release",
          .timeout = kAgentTimeout,
          .run =
              [this](PhaseScope& scope) {
                return ForEachMember([&](Member& member) {
                  return member.agent->Release(agent_client::AgentLink::Hold::kUntilCommit,
                                               TimeLeft(scope.deadline(), kAgentTimeout));
                });
              },
          .undo = [this] { return ReturnMemory(); },
          .undo_group = kUndoGroup};
}

// The phase's limit is for files, because the plan is made before data-room. Without files, only
// the user's own limit may be longer than the usual one.
Deadline SharedSuspend::SaveDeadline(const PhaseScope& scope) const {
  auto in_memory = [](const GpuShard& shard) { return shard.arena->in_memory(); };
  if (services_.settings.phase_timeout_s > 0 ||
      !std::all_of(shards_.begin(), shards_.end(), in_memory)) {
    return scope.deadline();
  }
  return Deadline::In(TimeLeft(scope.deadline(), kSaveTimeout));
}

Status SharedSuspend::Save(PhaseScope& scope) {
  const Deadline deadline = SaveDeadline(scope);
  const uint64_t total = bytes();
  std::atomic<uint64_t> before{0};
  Status saved =
      ForEachGpu(shards_, Same, [&](const GpuUuid& gpu, std::vector<GpuShard*>& shards) -> Status {
        dataplane::MoverLink& mover = services_.movers->MoverOf(gpu);
        bool holds = false;
        for (GpuShard* shard : shards) {
          if (shard->ranges.empty()) continue;
          if (holds) STASIS_TRY(mover.Release(deadline));
          STASIS_TRY(SaveShard(*shard, mover, deadline,
                               [&](uint64_t done) { scope.ReportBytes(before + done, total); }));
          before += shard->bytes();
          holds = true;
        }
        if (holds) BeginRelease(gpu, deadline);
        return {};
      });
  scope.SetBytes(this->saved().copied);
  return saved;
}

std::vector<int> SharedSuspend::Descriptors(const GpuShard& shard) const {
  std::vector<int> fds;
  for (size_t place : shard.places) fds.push_back(members_[shard.member].data.fds[place].get());
  return fds;
}

// Copies neither zero blocks nor blocks that the arena has from an earlier suspend. The hashes of
// the arena's blocks are discarded before the first byte is written, and no record on disk has
// contained them since the arena was acquired. If this process is killed here, it leaves an arena
// without hashes, so outdated hashes are never used.
Status SharedSuspend::SaveShard(GpuShard& shard, dataplane::MoverLink& mover,
                                const Deadline& deadline,
                                const std::function<void(uint64_t)>& progress) {
  dataplane::CopyOptions copy;
  copy.known = shard.arena->TakeKnown(key_.value_or(Id128{}));
  copy.checksum = !shard.arena->in_memory();
  copy.progress = [&](uint64_t done, uint64_t) { progress(done); };
  {
    std::lock_guard lock(mutex_);
    copy.hashes = secret_.has_value() && !why_unhashed_.contains(shard.key.gpu);
  }
  STASIS_TRY(mover.Attach(*shard.arena, deadline));
  // The mover may have been replaced since it was prepared. Without hashes everything is copied.
  if (copy.hashes && !PrepareHashes(shard.key.gpu, deadline)) {
    copy.hashes = false;
    STASIS_TRY(mover.Attach(*shard.arena, deadline));
  }
  STASIS_ASSIGN(auto result, mover.Save(shard.ranges, Descriptors(shard), copy, deadline));
  shard.checksum = result.checksum;
  if (copy.hashes) shard.hashes = dataplane::ArenaHashes{*key_, std::move(result.hashes)};
  std::lock_guard lock(mutex_);
  saved_.copied += result.copied_bytes;
  saved_.zero += result.zero_bytes;
  saved_.cold += result.cold_bytes;
  saved_.unchanged += result.cleared_bytes - result.zero_bytes;
  saved_.until_first_s = std::max(saved_.until_first_s, result.until_first_s);
  saved_.hashing_s = std::max(saved_.hashing_s, result.hashing_s);
  saved_.copy_s = std::max(saved_.copy_s, result.seconds);
  return {};
}

Phase SharedSuspend::DataSave() {
  return {.name = "data-save",
          .timeout = options_.spill_dir.empty() && options_.overflow_dir.empty()
                         ? kSaveTimeout
                         : std::max(kSaveToDiskTimeout, seconds(bytes() / kSlowestDisk)),
          .run = [this](PhaseScope& scope) { return Save(scope); },
          .undo = [this]() -> Status {
            (void)AwaitReleased();
            for (GpuShard& shard : shards_) {
              (void)services_.movers->MoverOf(shard.key.gpu).Release(Deadline::In(kAgentTimeout));
            }
            return {};
          }};
}

// The driver needs some time to unmap the memory, and nothing has to wait for that.
void SharedSuspend::BeginRelease(const GpuUuid& gpu, const Deadline& deadline) {
  auto release = [this, gpu, deadline]() -> Status {
    const Stopwatch watch;
    STASIS_TRY(Annotate(services_.movers->MoverOf(gpu).Release(deadline), gpu.value));
    std::lock_guard lock(mutex_);
    saved_.release_s = std::max(saved_.release_s, watch.Seconds());
    return {};
  };
  auto releasing = RunBeside(release);
  std::lock_guard lock(mutex_);
  releasing_.push_back(std::move(releasing));
}

Status SharedSuspend::AwaitReleased() {
  std::vector<std::future<Status>> releasing;
  {
    std::lock_guard lock(mutex_);
    releasing.swap(releasing_);
  }
  Status first;
  for (auto& one : releasing) {
    Status released = one.get();
    if (first && !released) first = std::move(released);
  }
  return first;
}

Phase SharedSuspend::DataCommit() {
  return {
      .name = "data-commit", .timeout = kAgentTimeout, .run = [this](PhaseScope& scope) -> Status {
        for (GpuShard& shard : shards_) {
          STASIS_TRY(store_->Complete(*shard.arena, shard.checksum, std::move(shard.hashes)));
        }
        STASIS_TRY(ForEachMember([&](Member& member) -> Status {
          STASIS_TRY(member.agent->Commit(TimeLeft(scope.deadline(), kAgentTimeout)));
          // An image must not contain a connection to this process.
          member.agent.reset();
          return {};
        }));
        return AwaitReleased();
      }};
}

Status SharedSuspend::ReturnMemory() { return gpu_state::ReturnMemory(services_, members_); }

void SharedSuspend::ReleaseGpu() {
  (void)AwaitReleased();
  const Stopwatch watch;
  for (Member& member : members_) {
    member.agent.reset();
    member.data.fds.clear();
  }
  {
    std::lock_guard lock(mutex_);
    saved_.close_s += watch.Seconds();
  }
  if (!services_.movers->keeps_arenas()) services_.movers->StopMovers();
}

void SharedSuspend::ReleaseAll() {
  ReleaseGpu();
  for (GpuShard& shard : shards_) {
    if (!shard.arena) continue;
    if (services_.movers->keeps_arenas()) services_.movers->KeepArena(std::move(*shard.arena));
    shard.arena.reset();
  }
}

Status SharedSuspend::ReturnArenas() {
  AbandonArenas(/*keep_data=*/true);
  ReleaseAll();
  return {};
}

}  // namespace stasis::gpu_state
