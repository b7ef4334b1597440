#include "gpu_state/shared_suspend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "base/secret.h"
#include "device/inspect.h"
#include "gpu_state/close_gates.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "plan/plan.h"

namespace stasis::gpu_state {
namespace {

using device::GpuUuid;
using plan::Phase;
using plan::PhaseScope;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The mover's context, and memory for the arena: fallocate takes 25 ms a GiB.
constexpr seconds kRoomTimeout{120};
constexpr seconds kGateTimeout{30};   // as the driver's lock: work that was submitted has to end
constexpr seconds kAgentTimeout{60};  // for lists of a million pieces
constexpr seconds kSaveTimeout{600};

constexpr const char* kUndoGroup = "memory";

milliseconds Left(const Deadline& deadline, milliseconds most) {
  if (deadline.never()) return most;
  return std::min(most, milliseconds(deadline.PollTimeout()));
}

GpuUuid Same(const GpuUuid& gpu) { return gpu; }

}  // namespace

Result<std::unique_ptr<SharedSuspend>> SharedSuspend::Look(Services& services,
                                                           const Processes& processes,
                                                           const AwayOptions& options) {
  STASIS_ASSIGN(auto found, FindSharedMembers(processes, options));
  STASIS_TRY(CheckPeers(found.members));
  if (!options.assume_unshared) STASIS_TRY(CheckSharingSeen(found.unseen));
  if (auto unseen = UnseenSharing(found.unseen)) found.left_to_driver.push_back(*unseen);
  return std::unique_ptr<SharedSuspend>(new SharedSuspend(services, options, std::move(found)));
}

SharedSuspend::~SharedSuspend() { Abandon(); }

uint64_t SharedSuspend::bytes() const {
  uint64_t sum = 0;
  for (const Lot& lot : lots_) sum += lot.bytes();
  return sum;
}

uint64_t SharedSuspend::BytesOf(const process::ProcessId& id) const {
  uint64_t sum = 0;
  for (const Lot& lot : lots_) sum += lot.key.process == id ? lot.bytes() : 0;
  return sum;
}

Saved SharedSuspend::saved() const {
  std::lock_guard lock(mutex_);
  return saved_;
}

std::vector<std::string> SharedSuspend::notes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> notes;
  for (const auto& [gpu, why] : why_unnamed_) {
    notes.push_back(fmt::format(
        "GPU {} did not look for zero and unchanged memory, so all of it was copied: {}", gpu.value,
        why));
  }
  return notes;
}

// Without names everything is copied, and a dump's are for the processors.
bool SharedSuspend::PrepareNames(const GpuUuid& gpu, const Deadline& deadline) {
  if (!secret_) return false;
  Status prepared = services_.resident->Of(gpu).PrepareNames(*secret_, deadline);
  if (prepared) return true;
  std::lock_guard lock(mutex_);
  why_unnamed_[gpu] = prepared.error().ToString();
  return false;
}

Status SharedSuspend::MakeRoom(const Deadline& deadline) {
  RaiseDescriptorLimit();
  dataplane::ArenaOptions options;
  options.spill_dir = options_.spill_dir;
  options.ignore_memory_check = options_.ignore_memory;
  options.most_bytes = services_.settings.most_arena_bytes;
  STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths, options));
  // Movers first: the memory that they take of the control group is not there for arenas.
  STASIS_TRY(ForEachGpu(lots_, Same, [&](const GpuUuid& gpu, std::vector<Lot*>&) -> Status {
    STASIS_TRY(services_.resident->Of(gpu).Start(deadline));
    return {};
  }));
  for (Lot& lot : lots_) {
    lot.arena = services_.resident->Take(lot.key);
    if (lot.arena) {
      STASIS_TRY(store_->Reshape(*lot.arena, lot.ranges));
    } else {
      STASIS_ASSIGN(lot.arena, store_->Acquire(lot.key, lot.owner, lot.ranges));
    }
  }
  auto secret = BlockSecretOf(services_.paths);
  if (secret) {
    secret_ = *secret;
    key_ = BlockKey(*secret).id();
  }
  return ForEachGpu(lots_, Same, [&](const GpuUuid& gpu, std::vector<Lot*>& lots) -> Status {
    if (!secret) {
      std::lock_guard lock(mutex_);
      why_unnamed_[gpu] = secret.error().ToString();
    }
    (void)PrepareNames(gpu, deadline);
    return services_.resident->Of(gpu).Attach(*lots.front()->arena, deadline);
  });
}

// What was made ready for a suspend that is not to be. An arena that holds the only copy of a
// program's memory stays: `recover` finds it by its name.
void SharedSuspend::Abandon(bool keep_data) {
  (void)AwaitReleased();
  for (Lot& lot : lots_) {
    if (!lot.arena) continue;
    const Member& member = members_[lot.member];
    if (lot.arena->record().complete && member.touched && process::IsAlive(member.id)) {
      (void)services_.resident->Of(lot.key.gpu).Detach(Deadline::In(kAgentTimeout));
    } else if (services_.resident->keeps_arenas()) {
      services_.resident->Keep(std::move(*lot.arena));
    } else {
      (void)services_.resident->Of(lot.key.gpu).Detach(Deadline::In(kAgentTimeout));
      // One that nothing was written to has what it had.
      const bool sound = process::IsAlive(member.id) && (keep_data || lot.arena->knows_data());
      (void)(sound ? store_->KeepData(std::move(*lot.arena))
                   : store_->Recycle(std::move(*lot.arena)));
    }
    lot.arena.reset();
  }
}

Phase SharedSuspend::DataRoom(uint64_t driver_bytes) {
  Phase phase;
  phase.name = "data-room";
  phase.timeout = kRoomTimeout;
  phase.run = [this, driver_bytes](PhaseScope& scope) -> Status {
    STASIS_TRY(MakeRoom(scope.deadline()));
    if (options_.ignore_memory || driver_bytes == 0) return {};
    return WithUnusedArenasAway(
        services_, [&] { return CheckHostMemory(driver_bytes, members_.front().id.pid); });
  };
  phase.undo = [this]() -> Status {
    Abandon();
    return {};
  };
  return phase;
}

Status SharedSuspend::ForEachMember(const std::function<Status(Member&)>& step) {
  return InParallel(members_.size(), [&](size_t i) {
    return Annotate(step(members_[i]), fmt::format("process {}", members_[i].id.pid.value));
  });
}

// Programs that share memory, or talk by NCCL, which shares host memory past the agents.
Result<bool> SharedSuspend::MayWaitForEachOther() const {
  if (members_.size() < 2) return false;
  for (const Member& member : members_) {
    if (member.client->hello().ipc_peer_count != 0) return true;
  }
  std::atomic<bool> may = false;
  STASIS_TRY(InParallel(members_.size(), [&](size_t i) -> Status {
    STASIS_ASSIGN(auto findings, device::Inspect(members_[i].id.pid));
    if (!findings.empty()) may = true;
    return {};
  }));
  return may.load();
}

Phase SharedSuspend::GateClose() {
  Phase phase;
  phase.name = "gate-close";
  phase.timeout = kGateTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    using Floor = wire::AgentClient::Floor;
    // A small stack limit spares the driver half of its work, and is work by itself.
    const bool keep = options_.keep_stack_limits || options_.keep_context;
    const Floor floor = keep ? Floor::kKeep : Floor::kLower;
    std::vector<GateOwner> owners;
    for (Member& member : members_) {
      member.touched = true;
      owners.push_back({fmt::format("process {}", member.id.pid.value), &*member.client});
    }
    STASIS_ASSIGN(bool together, MayWaitForEachOther());
    STASIS_TRY(CloseGates(owners, together, floor, scope.deadline()));
    // Somebody may have opened memory, and with a process that is not of us, until the last gate
    // was closed.
    STASIS_TRY(ForEachMember([&](Member& member) -> Status {
      STASIS_TRY(member.client->Status(Left(scope.deadline(), kAgentTimeout)));
      return {};
    }));
    return CheckPeers(members_);
  };
  phase.undo = [this] { return Return(); };
  phase.undo_group = kUndoGroup;
  return phase;
}

Phase SharedSuspend::DataExport() {
  Phase phase;
  phase.name = "data-export";
  phase.timeout = kAgentTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(ForEachMember([&](Member& member) -> Status {
      STASIS_ASSIGN(member.data, member.client->ExportAll(Left(scope.deadline(), kAgentTimeout)));
      return {};
    }));
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      STASIS_ASSIGN(auto lots, LotsOf(member.id, member.owner, i, member.data.ranges));
      for (Lot& lot : lots) {
        auto estimate = std::find_if(lots_.begin(), lots_.end(),
                                     [&](const Lot& l) { return l.key == lot.key; });
        if (estimate == lots_.end()) {
          return Fail(
              Code::kAborted,
              fmt::format("process {} took memory on another GPU while it was being stopped",
                          member.id.pid.value),
              "try again");
        }
        STASIS_TRY(store_->Reshape(*estimate->arena, lot.ranges));
        estimate->ranges = std::move(lot.ranges);
        estimate->places = std::move(lot.places);
      }
    }
    // Of a GPU on which all memory was freed meanwhile there is nothing to save.
    for (Lot& lot : lots_) {
      if (!lot.places.empty()) continue;
      lot.ranges.clear();
      STASIS_TRY(store_->Reshape(*lot.arena, {}));
    }
    return {};
  };
  phase.undo = [this] { return Return(); };
  phase.undo_group = kUndoGroup;
  return phase;
}

Phase SharedSuspend::DataRelease() {
  Phase phase;
  phase.name = "data-release";
  phase.timeout = kAgentTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    return ForEachMember([&](Member& member) {
      return member.client->Release(wire::AgentClient::Hold::kUntilCommit,
                                    Left(scope.deadline(), kAgentTimeout));
    });
  };
  phase.undo = [this] { return Return(); };
  phase.undo_group = kUndoGroup;
  return phase;
}

Status SharedSuspend::Save(PhaseScope& scope) {
  const uint64_t total = bytes();
  std::atomic<uint64_t> before{0};
  Status saved =
      ForEachGpu(lots_, Same, [&](const GpuUuid& gpu, std::vector<Lot*>& lots) -> Status {
        dataplane::Mover& mover = services_.resident->Of(gpu);
        bool holds = false;
        for (Lot* lot : lots) {
          if (lot->ranges.empty()) continue;
          if (holds) STASIS_TRY(mover.Release(scope.deadline()));
          STASIS_TRY(SaveLot(*lot, mover, scope.deadline(),
                             [&](uint64_t done) { scope.ReportBytes(before + done, total); }));
          before += lot->bytes();
          holds = true;
        }
        if (holds) BeginRelease(gpu, scope.deadline());
        return {};
      });
  scope.SetBytes(this->saved().copied);
  return saved;
}

// What the arena holds of an earlier suspend is not copied again, and zeros are not either. What is
// known of it is forgotten with the first byte that is written, here, and no record on disk has
// said it since the arena was acquired: whoever dies from here on leaves an arena without names.
Status SharedSuspend::SaveLot(Lot& lot, dataplane::Mover& mover, const Deadline& deadline,
                              const std::function<void(uint64_t)>& progress) {
  std::vector<int> fds;
  for (size_t place : lot.places) fds.push_back(members_[lot.member].data.fds[place].get());
  dataplane::CopyOptions copy;
  copy.known = lot.arena->TakeKnown(key_.value_or(Id128{}));
  copy.checksum = !lot.arena->in_memory();
  copy.progress = [&](uint64_t done, uint64_t) { progress(done); };
  {
    std::lock_guard lock(mutex_);
    copy.names = secret_.has_value() && !why_unnamed_.contains(lot.key.gpu);
  }
  STASIS_TRY(mover.Attach(*lot.arena, deadline));
  // Another mover may have taken the place of the one that was prepared. Without names all is
  // copied.
  if (copy.names && !PrepareNames(lot.key.gpu, deadline)) {
    copy.names = false;
    STASIS_TRY(mover.Attach(*lot.arena, deadline));
  }
  STASIS_ASSIGN(auto result, mover.Save(lot.ranges, fds, copy, deadline));
  lot.checksum = result.checksum;
  if (copy.names) lot.names = dataplane::ArenaNames{*key_, std::move(result.names)};
  std::lock_guard lock(mutex_);
  saved_.copied += result.copied_bytes;
  saved_.zero += result.zero_bytes;
  saved_.cold += result.cold_bytes;
  saved_.unchanged += result.cleared_bytes - result.zero_bytes;
  saved_.until_first_s = std::max(saved_.until_first_s, result.until_first_s);
  saved_.naming_s = std::max(saved_.naming_s, result.naming_s);
  saved_.copy_s = std::max(saved_.copy_s, result.seconds);
  return {};
}

Phase SharedSuspend::DataSave() {
  Phase phase;
  phase.name = "data-save";
  phase.timeout = kSaveTimeout;
  phase.run = [this](PhaseScope& scope) { return Save(scope); };
  phase.undo = [this]() -> Status {
    (void)AwaitReleased();
    for (Lot& lot : lots_) {
      (void)services_.resident->Of(lot.key.gpu).Release(Deadline::In(kAgentTimeout));
    }
    return {};
  };
  return phase;
}

// To unmap all of it takes the driver some time, which belongs to nobody who waits for the data.
void SharedSuspend::BeginRelease(const GpuUuid& gpu, const Deadline& deadline) {
  auto release = [this, gpu, deadline]() -> Status {
    const Stopwatch watch;
    STASIS_TRY(Annotate(services_.resident->Of(gpu).Release(deadline), gpu.value));
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
  Phase phase;
  phase.name = "data-commit";
  phase.timeout = kAgentTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    for (Lot& lot : lots_) {
      STASIS_TRY(store_->Complete(*lot.arena, lot.checksum, std::move(lot.names)));
    }
    STASIS_TRY(ForEachMember([&](Member& member) -> Status {
      STASIS_TRY(member.client->Commit(Left(scope.deadline(), kAgentTimeout)));
      // No connection of ours may be in an image.
      member.client.reset();
      return {};
    }));
    return AwaitReleased();
  };
  return phase;
}

// Its memory is its own again, behind the closed gate.
Status SharedSuspend::MapAgain(Member& member) {
  if (!member.touched) return {};
  const milliseconds timeout = std::min<milliseconds>(services_.undo_timeout(), kAgentTimeout);
  if (member.client) {
    auto answer = member.client->Status(std::min(timeout, kAgentAnswer));
    if (!answer) member.client.reset();
    // It stands in the driver, where another client would not find it either. When it comes back
    // and nobody is connected, it takes its memory by itself.
    if (!answer && answer.error().code == Code::kDeadlineExceeded && process::IsAlive(member.id)) {
      return Fail(std::move(answer).error());
    }
  }
  if (!member.client) {
    if (!process::IsAlive(member.id)) return {};
    auto found = FindAgent(member.id, timeout);
    if (!process::IsAlive(member.id)) return {};
    if (!found) return Fail(std::move(found).error());
    if (!*found) return Fail(Code::kUnavailable, "its agent cannot be found any more");
    member.client = std::move((*found)->client);
  }
  if (member.client->hello().state != wire::State::kReleased) return {};
  std::vector<int> fds;
  for (const auto& fd : member.data.fds) fds.push_back(fd.get());
  return member.client->Map(member.data.ranges, fds, timeout);
}

Status SharedSuspend::RejoinOthers(Member& member) {
  if (!member.client || member.client->hello().ipc_ranges == 0) return {};
  // Nothing has been given up before the gate was closed.
  const wire::State state = member.client->hello().state;
  if (state == wire::State::kOpen || state == wire::State::kShut) return {};
  return member.client->Rejoin(std::min<milliseconds>(services_.undo_timeout(), kAgentTimeout));
}

Status SharedSuspend::OpenGate(Member& member) {
  if (!member.client) return {};
  if (member.client->hello().state != wire::State::kOpen) {
    STASIS_TRY(
        member.client->Open(std::min<milliseconds>(services_.undo_timeout(), kAgentTimeout)));
  }
  member.touched = false;
  return {};
}

// All have their own memory before anybody asks for another's, and that before anybody may free
// any.
Status SharedSuspend::Return() {
  Status all;
  for (auto step :
       {&SharedSuspend::MapAgain, &SharedSuspend::RejoinOthers, &SharedSuspend::OpenGate}) {
    for (Member& member : members_) {
      Status one = (this->*step)(member);
      if (one || !process::IsAlive(member.id)) continue;
      member.client.reset();
      if (all) {
        all = Annotate(std::move(one), fmt::format("process {}", member.id.pid.value));
      }
    }
  }
  for (Member& member : members_) member.client.reset();
  return all;
}

void SharedSuspend::LetGoOfGpu() {
  (void)AwaitReleased();
  const Stopwatch watch;
  for (Member& member : members_) {
    member.client.reset();
    member.data.fds.clear();
  }
  {
    std::lock_guard lock(mutex_);
    saved_.close_s += watch.Seconds();
  }
  if (!services_.resident->keeps_arenas()) services_.resident->StopMovers();
}

void SharedSuspend::LetGo() {
  LetGoOfGpu();
  for (Lot& lot : lots_) {
    if (!lot.arena) continue;
    if (services_.resident->keeps_arenas()) services_.resident->Keep(std::move(*lot.arena));
    lot.arena.reset();
  }
}

Status SharedSuspend::DropArenas() {
  Abandon(/*keep_data=*/true);
  LetGo();
  return {};
}

}  // namespace stasis::gpu_state
