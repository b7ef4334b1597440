#include "gpu_state/shared_resume.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/parallel.h"
#include "plan/journal.h"
#include "plan/plan.h"

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
// Of data-read, whose end a load beside it waits for.
constexpr seconds kReadTimeout{3600};
constexpr milliseconds kLetGo{10000};

milliseconds Left(const Deadline& deadline) {
  if (deadline.never()) return kReturnTimeout;
  return std::min<milliseconds>(kReturnTimeout, milliseconds(deadline.PollTimeout()));
}

}  // namespace

namespace {

// Its memory is away and we have it not: arenas belong to the user who suspended the program.
Error NotOurs(const process::ProcessId& id) {
  Error error{Code::kFailedPrecondition};
  error.message = fmt::format(
      "its GPU memory is with nobody that user {} may ask: another user, or the same "
      "one with another STASIS_STATE_DIR, has suspended it",
      ::geteuid());
  error.hint = fmt::format("`stasis resume {}` as the one who did", id.pid.value);
  std::optional<uid_t> user;
  for (const KeptByOther& kept : KeptByOthers()) {
    if (kept.process == id) user = kept.user;
  }
  if (user) {
    error.message = fmt::format("user {} has suspended it and keeps its GPU memory", *user);
    error.hint =
        fmt::format("`sudo -u '#{}' stasis resume {}`: do it as that user", *user, id.pid.value);
  } else if (::geteuid() != 0) {
    error.hint += fmt::format("; for root: `sudo stasis resume {}`", id.pid.value);
  }
  return error;
}

}  // namespace

Status SharedResume::Look(const Processes& processes) {
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(Consider(process.id), fmt::format("process {}", process.id.pid.value)));
  }
  return {};
}

void SharedResume::Disconnect() {
  for (Member& member : members_) member.client.reset();
}

Status SharedResume::Consider(const process::ProcessId& id) {
  // The driver carried what the agent has not given away. Such an agent need not be asked, and may
  // be unable to answer while the driver has its program.
  STASIS_ASSIGN(const uint32_t memory, MemoryOf(id));
  if ((memory & agent_protocol::kMemoryAway) == 0) return {};
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent || agent->hello().state != agent_protocol::State::kReleased) return {};
  Member member;
  member.id = id;
  STASIS_ASSIGN(member.list, agent->client.Describe(kAgentAnswer));
  STASIS_ASSIGN(auto lots, LotsOf(id, 0, members_.size(), member.list));
  if (!store_) {
    STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths));
  }
  for (Lot& lot : lots) {
    STASIS_ASSIGN(lot.arena, TakeArena(lot));
    lot.owner = lot.arena->record().owner;
    lot.ranges = lot.arena->record().ranges;
    lots_.push_back(std::move(lot));
  }
  member.client = std::move(agent->client);
  members_.push_back(std::move(member));
  return {};
}

Result<dataplane::Arena> SharedResume::TakeArena(const Lot& lot) {
  auto arena = services_.resident->Take(lot.key);
  if (!arena) {
    auto found = store_->Find(lot.key);
    if (!found && found.error().code == Code::kNotFound) return Fail(NotOurs(lot.key.process));
    STASIS_ASSIGN(arena, std::move(found));
  }
  const auto& record = arena->record();
  if (record.complete && SameMemory(record.ranges, lot.ranges)) return std::move(*arena);
  return Fail(Code::kDataLoss, fmt::format("{} does not hold all of the program's memory on GPU {}",
                                           arena->path(), lot.key.gpu.value));
}

SharedResume::~SharedResume() { LetGo(); }

// The arenas stay as they are.
void SharedResume::LetGo() {
  for (Lot& lot : lots_) {
    if (!lot.arena) continue;
    if (services_.resident->keeps_arenas()) services_.resident->Keep(std::move(*lot.arena));
    lot.arena.reset();
  }
}

uint64_t SharedResume::bytes() const {
  uint64_t sum = 0;
  for (const Lot& lot : lots_) sum += lot.bytes();
  return sum;
}

uint64_t SharedResume::BytesOf(const process::ProcessId& id) const {
  uint64_t sum = 0;
  for (const Lot& lot : lots_) sum += lot.key.process == id ? lot.bytes() : 0;
  return sum;
}

GpuUuid SharedResume::To(const GpuUuid& gpu) const {
  for (const auto& [from, to] : map_) {
    if (from == gpu) return to;
  }
  return gpu;
}

Status SharedResume::StartMovers(const Deadline& deadline) {
  RaiseDescriptorLimit();
  auto to = [this](const GpuUuid& gpu) { return To(gpu); };
  return ForEachGpu(lots_, to, [&](const GpuUuid& gpu, std::vector<Lot*>&) -> Status {
    STASIS_TRY(services_.resident->Of(gpu).Start(deadline));
    return {};
  });
}

Status SharedResume::ForEachLoad(const std::function<Status(const GpuUuid&, GpuLoad&)>& step) {
  auto to = [this](const GpuUuid& gpu) { return To(gpu); };
  return ForEachGpu(lots_, to, [&](const GpuUuid& gpu, std::vector<Lot*>&) -> Status {
    auto load = loads_.find(gpu);
    return load == loads_.end() ? Status{} : step(gpu, load->second);
  });
}

Status SharedResume::MakeRoom(const std::map<GpuUuid, uint64_t>& driver_bytes,
                              const Deadline& deadline) {
  loads_.clear();
  std::map<GpuUuid, std::vector<Lot*>> by_gpu;
  for (Lot& lot : lots_) {
    if (!lot.ranges.empty()) by_gpu[To(lot.key.gpu)].push_back(&lot);
  }
  for (auto& [gpu, lots] : by_gpu) {
    loads_.try_emplace(gpu, services_.resident->Of(gpu), std::move(lots));
  }
  return ForEachLoad([&](const GpuUuid& gpu, GpuLoad& load) {
    auto driver = driver_bytes.find(gpu);
    return load.MakeRoom(driver == driver_bytes.end() ? 0 : driver->second, deadline);
  });
}

Phase SharedResume::LoadRoom(DriverBytes driver_bytes, bool keep_ballast) {
  Phase phase;
  phase.name = SharedResume::kLoadRoom;
  phase.timeout = kRoomTimeout;
  phase.run = [this, driver_bytes = std::move(driver_bytes),
               keep_ballast](PhaseScope& scope) -> Status {
    STASIS_TRY(StartMovers(scope.deadline()));
    STASIS_TRY(scope.WaitUntil([this] { return has_arenas_.load(); }));
    STASIS_TRY(MakeRoom(driver_bytes(), scope.deadline()));
    return keep_ballast ? Status{} : FreeBallast(&scope, scope.deadline());
  };
  phase.undo = [this]() -> Status {
    for (Lot& lot : lots_) {
      STASIS_TRY(services_.resident->Of(To(lot.key.gpu)).Release(Deadline::In(kLetGo)));
    }
    return {};
  };
  return phase;
}

Status SharedResume::FreeBallast(PhaseScope* scope, const Deadline& deadline) {
  return ForEachLoad(
      [&](const GpuUuid&, GpuLoad& load) { return load.FreeBallast(scope, deadline); });
}

Status SharedResume::Load(PhaseScope* scope, const Deadline& deadline,
                          const std::function<void(uint64_t)>& progress) {
  std::mutex mutex;
  std::map<GpuUuid, uint64_t> done;  // guarded by it
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

Phase SharedResume::DataLoad() {
  Phase phase;
  phase.name = "data-load";
  phase.timeout = kLoadTimeout + (has_arenas_ ? seconds(0) : kReadTimeout);
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(
        Load(&scope, scope.deadline(), [&](uint64_t done) { scope.ReportBytes(done, bytes()); }));
    scope.SetBytes(bytes());
    return {};
  };
  phase.undo = [this]() -> Status {
    for (Lot& lot : lots_) lot.memory.clear();
    return {};
  };
  return phase;
}

Status SharedResume::Return(const Deadline& deadline) {
  STASIS_TRY(InParallel(members_.size(), [&](size_t index) -> Status {
    Member& member = members_[index];
    std::vector<int> fds(member.list.size(), -1);
    for (const Lot& lot : lots_) {
      if (lot.member != index) continue;
      for (size_t i = 0; i < lot.memory.size(); ++i) fds[lot.places[i]] = lot.memory[i].get();
    }
    std::vector<agent_protocol::Range> list = member.list;
    for (auto& range : list) {
      if (!device::GpuUuidBytes(To(UuidOf(range.device)), range.device.bytes)) {
        return Fail(Code::kInternal, "a GPU has a name that is no UUID");
      }
    }
    return Annotate(member.client->Map(list, fds, Left(deadline)),
                    fmt::format("process {}", member.id.pid.value));
  }));
  // What is another's is there now, and nobody runs who could free it.
  for (Member& member : members_) {
    if (member.client->hello().ipc_ranges == 0) continue;
    STASIS_TRY(Annotate(member.client->Rejoin(Left(deadline)),
                        fmt::format("process {}", member.id.pid.value)));
  }
  // Nobody runs before everybody can.
  STASIS_TRY(InParallel(members_.size(), [&](size_t index) -> Status {
    Member& member = members_[index];
    STASIS_TRY(Annotate(member.client->Open(Left(deadline)),
                        fmt::format("process {}", member.id.pid.value)));
    member.client.reset();
    return {};
  }));
  for (Lot& lot : lots_) lot.memory.clear();
  return {};
}

Phase SharedResume::DataReturn() {
  Phase phase;
  phase.name = "data-return";
  phase.timeout = kReturnTimeout;
  phase.run = [this](PhaseScope& scope) { return Return(scope.deadline()); };
  // An agent that has mapped all of it keeps it; the driver's undo looks for that (gpu_steps.h).
  // One that has mapped a part drops that.
  phase.undo = [this]() -> Status {
    Disconnect();
    for (Lot& lot : lots_) lot.memory.clear();
    return {};
  };
  return phase;
}

void SharedResume::Expect(std::vector<Lot> lots) {
  lots_ = std::move(lots);
  for (Lot& lot : lots_) lot.filled = std::make_shared<std::atomic<uint64_t>>(0);
  has_arenas_ = lots_.empty();
}

Status SharedResume::MakeArenas() {
  dataplane::ArenaOptions options;
  options.most_bytes = services_.settings.most_arena_bytes;
  STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths, options));
  for (Lot& lot : lots_) {
    STASIS_ASSIGN(lot.arena, store_->Acquire(lot.key, lot.owner, lot.ranges));
  }
  has_arenas_ = true;
  return {};
}

Status SharedResume::Bind(const std::vector<Returned>& processes) {
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(BindTo(process), fmt::format("process {}", process.id.pid.value)));
  }
  for (const Lot& lot : lots_) {
    if (lot.key.process.start_time != 0) continue;
    return Fail(Code::kInternal, fmt::format("process {} has not come back for its GPU memory",
                                             lot.key.process.pid.value));
  }
  return {};
}

Status SharedResume::BindTo(const Returned& process) {
  const process::ProcessId& id = process.id;
  // Without data there is only a gate to be opened. Where there is none the agent is not needed,
  // which may be of any age.
  if (lots_.empty() && !SaysMemoryIsAway(id.pid)) return {};
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent || agent->hello().state != agent_protocol::State::kReleased) return {};
  Member member;
  member.id = id;
  STASIS_ASSIGN(member.list, agent->client.Describe(kAgentAnswer));
  STASIS_ASSIGN(auto wanted, LotsOf(id, 0, members_.size(), member.list));
  for (Lot& want : wanted) {
    auto lot = std::find_if(lots_.begin(), lots_.end(), [&](const Lot& l) {
      return l.key.process == process::ProcessId{{process.image_pid}, 0} &&
             l.key.gpu == want.key.gpu;
    });
    if (lot == lots_.end() || !SameMemory(lot->ranges, want.ranges)) {
      return Fail(Code::kDataLoss,
                  "the image does not hold all of its memory on GPU " + want.key.gpu.value);
    }
    STASIS_TRY(store_->Rekey(*lot->arena, id));
    STASIS_TRY(store_->Complete(*lot->arena));
    lot->key.process = id;
    lot->member = want.member;
    lot->places = std::move(want.places);
  }
  member.client = std::move(agent->client);
  members_.push_back(std::move(member));
  return {};
}

Status SharedResume::CallOff() {
  Disconnect();
  for (Lot& lot : lots_) {
    lot.memory.clear();
    if (!lot.arena) continue;
    auto& mover = services_.resident->Of(To(lot.key.gpu));
    // A mover that is gone, or has to be ended, holds nothing.
    (void)mover.Release(Deadline::In(kLetGo));
    (void)mover.Detach(Deadline::In(kLetGo));
  }
  for (Lot& lot : lots_) {
    if (lot.arena) STASIS_TRY(store_->Recycle(std::move(*lot.arena)));
    lot.arena.reset();
  }
  return {};
}

Status SharedResume::DropArenas() {
  for (Lot& lot : lots_) {
    if (!lot.arena || services_.resident->keeps_arenas()) continue;
    // A mover that is gone holds nothing.
    (void)services_.resident->Of(To(lot.key.gpu)).Detach(Deadline::In(kLetGo));
    // On another GPU nobody looks for it.
    STASIS_TRY(To(lot.key.gpu) == lot.key.gpu ? store_->KeepData(std::move(*lot.arena))
                                              : store_->Recycle(std::move(*lot.arena)));
    lot.arena.reset();
  }
  LetGo();
  if (!services_.resident->keeps_arenas()) services_.resident->StopMovers();
  return {};
}

Status SharedResume::Now(const Deadline& deadline) {
  STASIS_TRY(StartMovers(deadline));
  STASIS_TRY(MakeRoom({}, deadline));
  STASIS_TRY(FreeBallast(nullptr, deadline));
  STASIS_TRY(Load(nullptr, deadline, [](uint64_t) {}));
  STASIS_TRY(Return(deadline));
  return DropArenas();
}

namespace {

// Of a program that has its memory: whatever a killed operation left of it in arenas is old, and
// good for comparing at best.
void GiveBackArenas(Services& services, const process::ProcessId& id) {
  auto store = ArenasThereAre(services.paths);
  if (!store) return;
  auto list = store->List();
  if (!list) return;
  for (const auto& info : *list) {
    if (info.in_use || !info.record || info.record->key.process != id) continue;
    if (info.kept) continue;
    if (auto arena = store->Find(info.record->key)) (void)store->KeepData(std::move(*arena));
  }
}

}  // namespace

namespace {

// Memory that is back behind a gate that is not open yet: the agent could not set a stack limit
// back. It goes on trying by itself while nobody is connected, and is asked once more here.
Status OpenGate(const process::ProcessId& id) {
  STASIS_ASSIGN(auto agent, FindAgent(id));
  if (!agent || agent->hello().state != agent_protocol::State::kMapped) return {};
  Status open = agent->client.Open(kReturnTimeout);
  if (open) return {};
  Error error = std::move(open).error();
  constexpr int64_t kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  if (error.raw == kOutOfMemory) error.code = Code::kResourceExhausted;
  error.context.clear();
  error.message = "it has its memory back but does not run on: " + error.message;
  error.hint = fmt::format(
      "make room on its GPU (`stasis gpu ls`): its agent goes on trying, and `stasis resume {}` "
      "asks it again",
      id.pid.value);
  return Fail(std::move(error));
}

}  // namespace

Status BringDataBack(Services& services, const Processes& processes) {
  auto bring = [&](const plan::RecordedProcess& process) -> Status {
    SharedResume path(services, {});
    STASIS_TRY(path.Look({process}));
    if (!path.empty()) return path.Now(Deadline::In(services.undo_timeout()));
    return OpenGate(process.id);
  };
  Processes left = processes;
  Status all;
  // A process that has open what is another's cannot run before that one has it: once more, for as
  // long as that helps. Whoever waits for one that has ended is named, and no other has to wait
  // with it.
  for (size_t before = left.size() + 1; !left.empty() && left.size() < before;) {
    before = left.size();
    Processes again;
    all = {};
    for (const auto& process : left) {
      if (process.initial != ProcessState::kRunning || process.context_kept) continue;
      if (!process::IsAlive(process.id)) continue;
      Status back = bring(process);
      if (back) GiveBackArenas(services, process.id);
      if (back || !process::IsAlive(process.id)) continue;
      again.push_back(process);
      if (all) all = Annotate(std::move(back), fmt::format("process {}", process.id.pid.value));
    }
    left = std::move(again);
  }
  return all;
}

Result<bool> IsBack(Services& services, const Processes& processes) {
  for (const auto& process : processes) {
    if (!process::IsAlive(process.id)) continue;
    auto agent = FindAgent(process.id);
    if (!agent) {
      STASIS_ASSIGN(ProcessState state, services.device->State(process.id.pid));
      if (state != ProcessState::kLocked) return Fail(std::move(agent).error());
      STASIS_TRY(services.device->Unlock(process.id.pid, Deadline::In(services.undo_timeout())));
      agent = FindAgent(process.id);
      if (!agent) return Fail(std::move(agent).error());
    }
    if (*agent && (*agent)->hello().imported_ranges > 0) return true;
  }
  return false;
}

}  // namespace stasis::gpu_state
