#include "coordinator/shared_suspend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "coordinator/block_key.h"

namespace stasis::coordinator {
namespace {

using device::GpuUuid;
using device::ProcessState;
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
                                                           const OperationOptions& options) {
  std::unique_ptr<SharedSuspend> path(new SharedSuspend(services, options));
  for (const auto& process : processes) {
    STASIS_TRY(Annotate(path->Consider(process), fmt::format("process {}", process.id.pid.value)));
  }
  return path;
}

namespace {

// The driver's lock does not hold up calls that ask how far work is, and between its checkpoint and
// its restore they may read memory that is gone (driver 580: docs/measurements/2026-11-21-jax.md).
// An agent holds them back; nobody else does. Most programs rarely come there, but XLA, which JAX
// runs on, has a thread that does nothing else.
Status CheckSurvivesDriver(const process::ProcessId& id) {
  constexpr std::string_view kRuntime = "/xla_cuda_plugin";
  STASIS_ASSIGN(auto mappings, process::ReadMappings(id.pid));
  for (const auto& mapping : mappings) {
    if (mapping.path.find(kRuntime) == std::string::npos) continue;
    return Fail(Code::kUnimplemented,
                "it runs on XLA (" + mapping.path +
                    "), a thread of which reads GPU state past the driver's lock: the driver's "
                    "checkpoint would kill it",
                fmt::format("start it by `stasis run`, whose agent holds that thread back; `stasis "
                            "gpu checkpoint {}` does it all the same",
                            id.pid.value));
  }
  return {};
}

}  // namespace

Status SharedSuspend::Consider(const RecordedProcess& process) {
  if (process.initial != ProcessState::kRunning && process.initial != ProcessState::kLocked) {
    return {};
  }
  STASIS_ASSIGN(auto agent, FindAgent(process.id));
  auto leave = [&](const std::string& why) -> Status {
    if (agent && agent->hello().imported_ranges > 0) {
      return Fail(Code::kUnimplemented,
                  why +
                      ", and the driver alone could not restore memory that came back by an "
                      "earlier resume");
    }
    left_to_driver_.push_back(fmt::format("process {}: {}", process.id.pid.value, why));
    return CheckSurvivesDriver(process.id);
  };
  if (!agent) return leave("no agent in the program");
  const wire::HelloReply& hello = agent->hello();
  if (hello.state != wire::State::kOpen) {
    return Fail(Code::kFailedPrecondition,
                hello.state == wire::State::kReleased
                    ? "its memory was given away and never came back"
                    : "its memory came back, but its stack limits did not: it does not run on",
                fmt::format("`stasis resume {}` gives it what is missing", process.id.pid.value));
  }
  // The driver's checkpoint of these would succeed, and its restore would not.
  constexpr uint32_t kFatal = wire::kBlockerSharedVmm | wire::kBlockerLegacyIpc;
  if ((hello.blockers & kFatal) != 0) {
    return Fail(Code::kUnimplemented, WhyNotShared(hello),
                "with NCCL, NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 in its environment avoids it");
  }
  if (options_.driver_alone) return leave("the driver was to carry all");
  if (process.initial == ProcessState::kLocked) return leave("the driver has it locked");
  if (std::string why = WhyNotShared(hello); !why.empty()) return leave(why);
  if (hello.range_count == 0) return leave("its agent has no memory to carry");
  STASIS_TRY(CheckDescriptorsFit(*agent));
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(process.id.pid));
  Member member;
  member.id = process.id;
  member.owner = credentials.uid[1];
  member.range_bytes = hello.range_bytes;
  for (uint32_t i = 0; i < hello.device_count; ++i) {
    const auto& device = hello.devices[i];
    if (device.ranges == 0) continue;
    Lot lot;
    lot.key = {process.id, UuidOf(device.uuid)};
    lot.owner = member.owner;
    lot.member = members_.size();
    lot.ranges.push_back({0, device.range_bytes, 0, 0});
    STASIS_TRY(dataplane::LayOut(lot.ranges));
    lots_.push_back(std::move(lot));
  }
  member.client = std::move(agent->client);
  members_.push_back(std::move(member));
  return {};
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
  STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths, options));
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
    key_ = image::BlockKey(*secret).id();
  }
  return ForEachGpu(lots_, Same, [&](const GpuUuid& gpu, std::vector<Lot*>& lots) -> Status {
    STASIS_TRY(services_.resident->Of(gpu).Start(deadline));
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

Phase SharedSuspend::DataRoom() {
  Phase phase;
  phase.name = "data-room";
  phase.timeout = kRoomTimeout;
  phase.run = [this](PhaseScope& scope) { return MakeRoom(scope.deadline()); };
  phase.undo = [this]() -> Status {
    Abandon();
    return {};
  };
  return phase;
}

Phase SharedSuspend::GateClose() {
  Phase phase;
  phase.name = "gate-close";
  phase.timeout = kGateTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    std::vector<Status> results(members_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members_.size(); ++i) {
      members_[i].touched = true;
      threads.emplace_back(
          [&, i] { results[i] = members_[i].client->Close(Left(scope.deadline(), kGateTimeout)); });
    }
    for (auto& thread : threads) thread.join();
    for (auto& result : results) STASIS_TRY(std::move(result));
    return {};
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
    std::vector<Lot> exact;
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      STASIS_ASSIGN(member.data, member.client->ExportAll(Left(scope.deadline(), kAgentTimeout)));
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
    for (Member& member : members_) {
      STASIS_TRY(member.client->Release(wire::AgentClient::Hold::kUntilCommit,
                                        Left(scope.deadline(), kAgentTimeout)));
    }
    return {};
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
        for (Lot* lot : lots) {
          if (lot->ranges.empty()) continue;
          STASIS_TRY(SaveLot(*lot, mover, scope.deadline(),
                             [&](uint64_t done) { scope.ReportBytes(before + done, total); }));
          before += lot->bytes();
          STASIS_TRY(mover.Release(scope.deadline()));
        }
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
  const auto known = lot.arena->TakeKnown(key_.value_or(image::Id128{}));
  uint64_t zero = 0;
  dataplane::CopyOptions copy;
  copy.checksum = !lot.arena->in_memory();
  copy.progress = [&](uint64_t done, uint64_t) { progress(done); };
  {
    std::lock_guard lock(mutex_);
    copy.names = secret_.has_value() && !why_unnamed_.contains(lot.key.gpu);
  }
  copy.skip_of = [&](const std::vector<image::Id128>& names) {
    std::vector<uint8_t> skip(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      skip[i] = names[i].IsZero() || (i < known.size() && known[i] == names[i]) ? 1 : 0;
    }
    return skip;
  };
  STASIS_TRY(mover.Attach(*lot.arena, deadline));
  // Another mover may have taken the place of the one that was prepared. Without names all is
  // copied.
  if (copy.names && !PrepareNames(lot.key.gpu, deadline)) {
    copy.names = false;
    STASIS_TRY(mover.Attach(*lot.arena, deadline));
  }
  STASIS_ASSIGN(auto result, mover.Save(lot.ranges, fds, copy, deadline));
  zero = result.zero_bytes;
  lot.checksum = result.checksum;
  if (copy.names) lot.names = dataplane::ArenaNames{*key_, std::move(result.names)};
  std::lock_guard lock(mutex_);
  saved_.copied += result.copied_bytes;
  saved_.zero += zero;
  saved_.unchanged += result.cleared_bytes - zero;
  return {};
}

Phase SharedSuspend::DataSave() {
  Phase phase;
  phase.name = "data-save";
  phase.timeout = kSaveTimeout;
  phase.run = [this](PhaseScope& scope) { return Save(scope); };
  phase.undo = [this]() -> Status {
    for (Lot& lot : lots_) {
      (void)services_.resident->Of(lot.key.gpu).Release(Deadline::In(kAgentTimeout));
    }
    return {};
  };
  return phase;
}

Phase SharedSuspend::DataCommit() {
  Phase phase;
  phase.name = "data-commit";
  phase.timeout = kAgentTimeout;
  phase.run = [this](PhaseScope& scope) -> Status {
    for (Lot& lot : lots_) {
      STASIS_TRY(store_->Complete(*lot.arena, lot.checksum, std::move(lot.names)));
    }
    for (Member& member : members_) {
      STASIS_TRY(member.client->Commit(Left(scope.deadline(), kAgentTimeout)));
      // No connection of ours may be in an image.
      member.client.reset();
    }
    return {};
  };
  return phase;
}

Status SharedSuspend::ReturnTo(Member& member) {
  if (!member.touched) return {};
  const milliseconds timeout = std::min<milliseconds>(services_.undo_timeout, kAgentTimeout);
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
  auto settle = [&]() -> Status {
    if (member.client->hello().state == wire::State::kReleased) {
      std::vector<int> fds;
      for (const auto& fd : member.data.fds) fds.push_back(fd.get());
      STASIS_TRY(member.client->Map(member.data.ranges, fds, timeout));
    } else if (member.client->hello().state == wire::State::kOpen) {
      return {};
    }
    return member.client->Open(timeout);
  };
  Status settled = settle();
  if (!settled && !process::IsAlive(member.id)) return {};
  if (settled) member.touched = false;
  return settled;
}

Status SharedSuspend::Return() {
  Status all;
  for (Member& member : members_) {
    Status one = Annotate(ReturnTo(member), fmt::format("process {}", member.id.pid.value));
    member.client.reset();
    if (!one && all) all = std::move(one);
  }
  return all;
}

void SharedSuspend::LetGoOfGpu() {
  for (Member& member : members_) {
    member.client.reset();
    member.data.fds.clear();
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

}  // namespace stasis::coordinator
