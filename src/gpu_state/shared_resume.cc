#include "gpu_state/shared_resume.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/descriptor_table.h"
#include "base/parallel.h"
#include "plan/journal.h"
#include "plan/plan.h"
#include "process/control_group.h"

namespace stasis::gpu_state {
namespace {

using device::GpuUuid;
using device::ProcessState;
using plan::Phase;
using plan::PhaseScope;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kRoomTimeout{120};
constexpr seconds kLoadTimeout{600};
constexpr seconds kReturnTimeout{60};
// Additional time for data-read, because data-load waits for its end.
constexpr seconds kReadTimeout{3600};
constexpr milliseconds kMoverRelease{10000};

milliseconds Left(const Deadline& deadline) { return TimeLeft(deadline, kReturnTimeout); }

// The error for memory that is in no arena of this user, but in arenas of the user who suspended
// the program.
Error HeldByOther(const process::ProcessId& id) {
  Error error{Code::kFailedPrecondition};
  error.message = fmt::format(
      "its GPU memory is in no arena that user {} can access: another user, or the same user with "
      "another STASIS_STATE_DIR, has suspended it",
      ::geteuid());
  error.hint = fmt::format("run `stasis resume {}` as that user", id.pid.value);
  std::optional<uid_t> user;
  for (const ArenaOfOther& kept : ArenasOfOthers()) {
    if (kept.process == id) user = kept.user;
  }
  if (user) {
    error.message = fmt::format("user {} has suspended it and holds its GPU memory", *user);
    error.hint = fmt::format("`sudo -u '#{}' stasis resume {}` resumes it as that user", *user,
                             id.pid.value);
  } else if (::geteuid() != 0) {
    error.hint += fmt::format("; for root: `sudo stasis resume {}`", id.pid.value);
  }
  return error;
}

}  // namespace

Status SharedResume::FindArenas(const Processes& processes) {
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(AddProcess(process.id), fmt::format("process {}", process.id.pid.value)));
  }
  return {};
}

void SharedResume::Disconnect() {
  for (Member& member : members_) member.agent.reset();
}

Status SharedResume::AddProcess(const process::ProcessId& id) {
  // An agent that has not released its memory is not asked: the driver carried that memory, and the
  // agent may be unable to answer while the driver has locked its program.
  STASIS_ASSIGN(const uint32_t memory, MemoryOf(*services_.agents, id));
  if ((memory & agent_protocol::kMemoryAway) == 0) return {};
  STASIS_ASSIGN(auto agent, FindAgent(*services_.agents, id));
  if (!agent || agent->hello().state != agent_protocol::State::kReleased) return {};
  Member member;
  member.id = id;
  STASIS_ASSIGN(member.list, agent->Describe(kAgentAnswer));
  STASIS_ASSIGN(auto shards, ShardsOf(id, 0, members_.size(), member.list));
  if (!store_) {
    STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths));
  }
  for (GpuShard& shard : shards) {
    STASIS_ASSIGN(shard.arena, OpenArena(shard));
    shard.owner = shard.arena->record().owner;
    shard.ranges = shard.arena->record().ranges;
    shards_.push_back(std::move(shard));
  }
  member.agent = std::move(agent);
  members_.push_back(std::move(member));
  return {};
}

Result<dataplane::Arena> SharedResume::OpenArena(const GpuShard& shard) {
  auto arena = services_.movers->TakeArena(shard.key);
  if (!arena) {
    auto found = store_->Find(shard.key);
    if (!found && found.error().code == Code::kNotFound)
      return Fail(HeldByOther(shard.key.process));
    STASIS_ASSIGN(arena, std::move(found));
  }
  const auto& record = arena->record();
  if (record.complete && SameMemory(record.ranges, shard.ranges)) return std::move(*arena);
  return Fail(Code::kDataLoss, fmt::format("{} does not hold all of the program's memory on GPU {}",
                                           arena->path(), shard.key.gpu.value));
}

void SharedResume::ReleaseMovers() {
  for (GpuShard& shard : shards_) {
    if (!shard.arena && !shard.source) continue;
    auto& mover = MoverFor(shard);
    // A mover that has died, or is killed, holds nothing.
    (void)mover.Release(Deadline::In(kMoverRelease));
    (void)mover.Detach(Deadline::In(kMoverRelease));
  }
}

void SharedResume::ReleaseArenas() {
  // A mover shares the lock of the arena that it has attached.
  if (!loads_.empty() && !services_.movers->keeps_arenas()) ReleaseMovers();
  for (GpuShard& shard : shards_) {
    if (!shard.arena) continue;
    if (services_.movers->keeps_arenas()) services_.movers->KeepArena(std::move(*shard.arena));
    shard.arena.reset();
  }
}

dataplane::MoverLink& SharedResume::MoverFor(const GpuShard& shard) {
  return services_.movers->MoverOf(TargetOf(shard.key.gpu));
}

Status SharedResume::StartMovers(const Deadline& deadline) {
  (void)RaiseDescriptorLimit();  // a descriptor for every piece of memory
  auto to = [this](const GpuUuid& gpu) { return TargetOf(gpu); };
  return ForEachGpu(shards_, to, [&](const GpuUuid& gpu, std::vector<GpuShard*>&) -> Status {
    STASIS_TRY(services_.movers->MoverOf(gpu).Start(deadline));
    return {};
  });
}

// Without hashes on one GPU, the memory of all goes through arenas.
Status SharedResume::ChooseWay(const Deadline& deadline) {
  if (way_ != Way::kUnknown) return {};
  std::mutex mutex;  // guards why_no_sources_
  auto to = [this](const GpuUuid& gpu) { return TargetOf(gpu); };
  STASIS_TRY(ForEachGpu(shards_, to, [&](const GpuUuid& gpu, std::vector<GpuShard*>&) -> Status {
    Status prepared = services_.movers->MoverOf(gpu).PrepareHashes(*secret_, deadline);
    if (prepared || prepared.error().code != Code::kUnimplemented) return prepared;
    std::lock_guard lock(mutex);
    why_no_sources_ = prepared.error().ToString();
    return {};
  }));
  way_ = why_no_sources_.empty() ? Way::kSources : Way::kArenas;
  return {};
}

Status SharedResume::ForEachLoad(const std::function<Status(const GpuUuid&, GpuLoad&)>& step) {
  auto to = [this](const GpuUuid& gpu) { return TargetOf(gpu); };
  return ForEachGpu(shards_, to, [&](const GpuUuid& gpu, std::vector<GpuShard*>&) -> Status {
    auto load = loads_.find(gpu);
    return load == loads_.end() ? Status{} : step(gpu, load->second);
  });
}

// The program's own memory must fit under the limit of the control group too.
uint64_t SharedResume::MostRingBytes() const {
  constexpr uint64_t kPart = 4;
  const uint64_t left = process::MemoryLeftInControlGroups({::getpid()}).beyond_reserve() / kPart;
  return arena_limit_bytes_ == 0 ? left : std::min(left, arena_limit_bytes_);
}

Status SharedResume::MakeRoom(const std::map<GpuUuid, uint64_t>& driver_bytes,
                              const Deadline& deadline) {
  loads_.clear();
  std::map<GpuUuid, std::vector<GpuShard*>> by_gpu;
  for (GpuShard& shard : shards_) {
    if (!shard.ranges.empty()) by_gpu[TargetOf(shard.key.gpu)].push_back(&shard);
  }
  const uint64_t most_ring_bytes = by_gpu.empty() ? 0 : MostRingBytes() / by_gpu.size();
  for (auto& [gpu, shards] : by_gpu) {
    loads_.try_emplace(gpu, services_.movers->MoverOf(gpu), std::move(shards), most_ring_bytes);
  }
  return ForEachLoad([&](const GpuUuid& gpu, GpuLoad& load) {
    auto driver = driver_bytes.find(gpu);
    return load.MakeRoom(driver == driver_bytes.end() ? 0 : driver->second, deadline);
  });
}

Phase SharedResume::LoadRoom(DriverBytes driver_bytes, bool keep_ballast) {
  return {.name = kLoadRoom,
          .timeout = kRoomTimeout,
          .run = [this, driver_bytes = std::move(driver_bytes),
                  keep_ballast](PhaseScope& scope) -> Status {
            STASIS_TRY(StartMovers(scope.deadline()));
            STASIS_TRY(ChooseWay(scope.deadline()));
            scope.Changed();
            STASIS_TRY(scope.WaitUntil([this] { return has_arenas_.load(); }));
            STASIS_TRY(MakeRoom(driver_bytes(), scope.deadline()));
            return keep_ballast ? Status{} : FreeBallast(&scope, scope.deadline());
          },
          .undo = [this]() -> Status {
            // A mover that has died, or is killed, holds nothing.
            for (GpuShard& shard : shards_) {
              (void)MoverFor(shard).Release(Deadline::In(kMoverRelease));
            }
            return {};
          }};
}

Status SharedResume::FreeBallast(PhaseScope* scope, const Deadline& deadline) {
  return ForEachLoad(
      [&](const GpuUuid&, GpuLoad& load) { return load.FreeBallast(scope, deadline); });
}

Status SharedResume::Load(PhaseScope* scope, const Deadline& deadline,
                          const std::function<void(uint64_t)>& progress) {
  std::mutex mutex;
  std::map<GpuUuid, uint64_t> done;  // guarded by `mutex`
  return ForEachLoad([&](const GpuUuid& gpu, GpuLoad& load) {
    return load.Load(scope, deadline, [&](uint64_t bytes) {
      std::lock_guard lock(mutex);
      done[gpu] = bytes;
      uint64_t sum = 0;
      for (const auto& [of_gpu, of_it] : done) sum += of_it;
      progress(sum);
    });
  });
}

uint64_t SharedResume::cold_bytes() const {
  uint64_t sum = 0;
  for (const auto& [gpu, load] : loads_) sum += load.cold_bytes();
  return sum;
}

void SharedResume::FreeMemory() {
  for (GpuShard& shard : shards_) shard.memory.clear();
}

Phase SharedResume::DataLoad() {
  return {.name = kDataLoad,
          .timeout = kLoadTimeout + (has_arenas_ ? seconds(0) : kReadTimeout),
          .run = [this](PhaseScope& scope) -> Status {
            STASIS_TRY(Load(&scope, scope.deadline(),
                            [&](uint64_t done) { scope.ReportBytes(done, bytes()); }));
            scope.SetBytes(bytes());
            return {};
          },
          .undo = [this]() -> Status {
            FreeMemory();
            return {};
          }};
}

Status SharedResume::ReturnMemory(const Deadline& deadline) {
  STASIS_TRY(InParallel(members_.size(), [&](size_t index) -> Status {
    Member& member = members_[index];
    std::vector<int> fds(member.list.size(), -1);
    for (const GpuShard& shard : shards_) {
      if (shard.member != index) continue;
      for (size_t i = 0; i < shard.memory.size(); ++i) fds[shard.places[i]] = shard.memory[i].get();
    }
    std::vector<agent_protocol::Range> list = member.list;
    for (auto& range : list) {
      if (!device::GpuUuidBytes(TargetOf(UuidOf(range.device)), range.device.bytes)) {
        return Fail(Code::kInternal, "the name of a GPU is not a UUID");
      }
    }
    return Annotate(member.agent->Map(list, fds, Left(deadline)),
                    fmt::format("process {}", member.id.pid.value));
  }));
  // Memory of other processes is mapped by now, and no program runs that could free it.
  for (Member& member : members_) {
    if (member.agent->hello().ipc_ranges == 0) continue;
    STASIS_TRY(Annotate(member.agent->Rejoin(Left(deadline)),
                        fmt::format("process {}", member.id.pid.value)));
  }
  // No program runs before all programs have all of their memory.
  STASIS_TRY(InParallel(members_.size(), [&](size_t index) -> Status {
    Member& member = members_[index];
    STASIS_TRY(Annotate(member.agent->Open(Left(deadline)),
                        fmt::format("process {}", member.id.pid.value)));
    member.agent.reset();
    return {};
  }));
  FreeMemory();
  return {};
}

Phase SharedResume::DataReturn() {
  return {.name = "data-return",
          .timeout = kReturnTimeout,
          .run = [this](PhaseScope& scope) { return ReturnMemory(scope.deadline()); },
          // An agent that has mapped all of its memory keeps it, which the driver's undo checks for
          // (gpu_steps.h). An agent that has mapped a part unmaps it.
          .undo = [this]() -> Status {
            Disconnect();
            FreeMemory();
            return {};
          }};
}

namespace {

// A start time with this bit belongs to a process that does not exist yet.
constexpr uint64_t kExpected = 1ull << 62;

bool IsExpected(const process::ProcessId& id) { return (id.start_time & kExpected) != 0; }

}  // namespace

process::ProcessId SharedResume::ExpectedProcess(pid_t image_pid) {
  return {{image_pid}, kExpected | static_cast<uint64_t>(::getpid())};
}

void SharedResume::ExpectShards(std::vector<GpuShard> shards) {
  shards_ = std::move(shards);
  for (GpuShard& shard : shards_) shard.filled = std::make_shared<std::atomic<uint64_t>>(0);
  has_arenas_ = shards_.empty();
}

void SharedResume::PreferSources(const BlockSecret& secret) {
  secret_ = secret;
  way_ = Way::kUnknown;
}

Status SharedResume::AllocateArenas() {
  dataplane::ArenaOptions options;
  options.most_bytes = services_.settings.most_arena_bytes;
  options.most_own_bytes = arena_limit_bytes_;
  STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths, options));
  for (GpuShard& shard : shards_) {
    STASIS_TRY(GiveArena(*store_, shard));
  }
  has_arenas_ = true;
  return {};
}

Status SharedResume::BindProcesses(const std::vector<Returned>& processes) {
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(BindProcess(process), fmt::format("process {}", process.id.pid.value)));
  }
  for (const GpuShard& shard : shards_) {
    if (!IsExpected(shard.key.process)) continue;
    return Fail(Code::kInternal,
                fmt::format("process {} of the image did not request its GPU memory",
                            shard.key.process.pid.value));
  }
  return {};
}

Status SharedResume::BindProcess(const Returned& process) {
  const process::ProcessId& id = process.id;
  // Without shards, only a gate may have to be opened. If the gate is open, do not contact the
  // agent, which may be of any version.
  if (shards_.empty() && !SaysMemoryIsAway(*services_.agents, id.pid)) return {};
  STASIS_ASSIGN(auto agent, FindAgent(*services_.agents, id));
  if (!agent || agent->hello().state != agent_protocol::State::kReleased) return {};
  Member member;
  member.id = id;
  STASIS_ASSIGN(member.list, agent->Describe(kAgentAnswer));
  STASIS_ASSIGN(auto wanted, ShardsOf(id, 0, members_.size(), member.list));
  for (GpuShard& want : wanted) {
    auto shard = std::find_if(shards_.begin(), shards_.end(), [&](const GpuShard& l) {
      return l.key.process == ExpectedProcess(process.image_pid) && l.key.gpu == want.key.gpu;
    });
    if (shard == shards_.end() || !SameMemory(shard->ranges, want.ranges)) {
      return Fail(Code::kDataLoss,
                  "the image does not hold all of its memory on GPU " + want.key.gpu.value);
    }
    if (shard->arena) {
      STASIS_TRY(store_->Rekey(*shard->arena, id));
      STASIS_TRY(store_->Complete(*shard->arena));
    }
    shard->key.process = id;
    shard->member = want.member;
    shard->places = std::move(want.places);
  }
  member.agent = std::move(agent);
  members_.push_back(std::move(member));
  return {};
}

Status SharedResume::Discard() {
  Disconnect();
  FreeMemory();
  ReleaseMovers();
  for (GpuShard& shard : shards_) {
    if (shard.arena) STASIS_TRY(store_->Recycle(std::move(*shard.arena)));
    shard.source.reset();
    shard.arena.reset();
  }
  return {};
}

Status SharedResume::ReturnArenas() {
  for (GpuShard& shard : shards_) {
    // A mover that has died holds nothing.
    if (shard.source) (void)MoverFor(shard).Detach(Deadline::In(kMoverRelease));
    shard.source.reset();
    if (!shard.arena || services_.movers->keeps_arenas()) continue;
    (void)MoverFor(shard).Detach(Deadline::In(kMoverRelease));
    // After a move to another GPU, kept data is useless: the next suspend looks only for data of
    // the new GPU.
    STASIS_TRY(TargetOf(shard.key.gpu) == shard.key.gpu ? store_->KeepData(std::move(*shard.arena))
                                                        : store_->Recycle(std::move(*shard.arena)));
    shard.arena.reset();
  }
  ReleaseArenas();
  if (!services_.movers->keeps_arenas()) services_.movers->StopMovers();
  return {};
}

Status SharedResume::RunAll(const Deadline& deadline) {
  STASIS_TRY(StartMovers(deadline));
  STASIS_TRY(MakeRoom({}, deadline));
  STASIS_TRY(FreeBallast(nullptr, deadline));
  STASIS_TRY(Load(nullptr, deadline, [](uint64_t) {}));
  STASIS_TRY(ReturnMemory(deadline));
  return ReturnArenas();
}

namespace {

// Releases the arenas of a program that has its memory back. The data that a killed operation left
// there may be outdated and is useful only for comparison.
void RecycleArenas(Services& services, const process::ProcessId& id) {
  auto store = ExistingArenas(services.paths);
  if (!store) return;
  auto list = store->List();
  if (!list) return;
  for (const auto& info : *list) {
    if (info.in_use || !info.record || info.record->key.process != id) continue;
    if (info.kept) continue;
    if (auto arena = store->Find(info.record->key)) (void)store->KeepData(std::move(*arena));
  }
}

// Opens a gate that is closed although the memory is mapped, because the agent could not restore a
// stack limit. The agent retries by itself while no client is connected.
Status OpenGate(agent_client::Agents& agents, const process::ProcessId& id) {
  STASIS_ASSIGN(auto agent, FindAgent(agents, id));
  if (!agent || agent->hello().state != agent_protocol::State::kMapped) return {};
  Status open = agent->Open(kReturnTimeout);
  if (open) return {};
  Error error = std::move(open).error();
  if (agent_client::IsOutOfMemory(error)) error.code = Code::kResourceExhausted;
  error.context.clear();
  error.message = "its memory was restored, but it is not running: " + error.message;
  error.hint = fmt::format(
      "free memory on its GPU (`stasis gpu ls`): its agent keeps retrying, and `stasis resume {}` "
      "retries at once",
      id.pid.value);
  return Fail(std::move(error));
}

}  // namespace

Status ReturnStoredData(Services& services, const Processes& processes) {
  auto bring = [&](const plan::RecordedProcess& process) -> Status {
    SharedResume path(services, {});
    STASIS_TRY(path.FindArenas({process}));
    if (!path.empty()) return path.RunAll(Deadline::In(services.undo_timeout()));
    return OpenGate(*services.agents, process.id);
  };
  Processes left = processes;
  Status all;
  // A process that opens memory of another process cannot run before the other one has that memory,
  // so this repeats while it makes progress. A process that waits for an ended one is named in the
  // error and does not delay the others.
  for (size_t before = left.size() + 1; !left.empty() && left.size() < before;) {
    before = left.size();
    Processes again;
    all = {};
    for (const auto& process : left) {
      if (process.initial != ProcessState::kRunning || process.context_kept) continue;
      if (!process::IsAlive(process.id)) continue;
      Status back = bring(process);
      if (back) RecycleArenas(services, process.id);
      if (back || !process::IsAlive(process.id)) continue;
      again.push_back(process);
      if (all) all = Annotate(std::move(back), fmt::format("process {}", process.id.pid.value));
    }
    left = std::move(again);
  }
  return all;
}

Result<bool> AnyMemoryReturned(Services& services, const Processes& processes) {
  for (const auto& process : processes) {
    if (!process::IsAlive(process.id)) continue;
    auto agent = FindAgent(*services.agents, process.id);
    if (!agent) {
      STASIS_ASSIGN(ProcessState state, services.device->State(process.id.pid));
      if (state != ProcessState::kLocked) return Fail(std::move(agent).error());
      STASIS_TRY(services.device->Unlock(process.id.pid, Deadline::In(services.undo_timeout())));
      agent = FindAgent(*services.agents, process.id);
      if (!agent) return Fail(std::move(agent).error());
    }
    if (*agent && (*agent)->hello().imported_ranges > 0) return true;
  }
  return false;
}

}  // namespace stasis::gpu_state
