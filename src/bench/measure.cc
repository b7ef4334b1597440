#include "bench/measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "abi/driver_kinds.h"
#include "bench/blocks.h"
#include "bench/huge_pages.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/services.h"
#include "gpu_state/suspended.h"
#include "jobs/agent_library.h"
#include "operations/operations.h"

namespace stasis::bench {
namespace {

using operations::OperationOptions;
using operations::OperationResult;
using operations::Session;

constexpr uint64_t kWireBytes = 1ull << 30;
constexpr int kStackRounds = 3;
constexpr std::chrono::seconds kWireTimeout{120};
// GPU memory for the measurement of hashing; less if the GPU has less free memory.
constexpr uint64_t kHashingBytes = 8ull << 30;
constexpr uint64_t kSoftwareHashingBytes = 64ull << 20;
// GPU memory for the contexts of the workload and the mover, and for unused parts of slabs.
constexpr uint64_t kContextBytes = 1280ull << 20;
constexpr uint64_t kSoftwareContextBytes = 64ull << 20;

std::string Mib(uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

class Bench {
 public:
  Bench(const Paths& paths, const MeasureOptions& options)
      : paths_(paths),
        options_(options),
        services_(gpu_state::MakeServices(paths, options.settings, options.stasis_version, true)) {}

  Result<Measurements> Run();

 private:
  enum class Path { kShared, kSharedStacksKept, kDriver };

  Status CheckRoom();
  Status CheckCancelled() const;
  Result<SharedRun> MeasureShared(uint64_t allocation_bytes);
  Result<DriverRun> MeasureDriver(const std::string& huge_pages);
  Result<std::vector<Round>> MeasureRounds(Blocks& blocks, int count, const std::string& what);
  Result<Round> OneRound(Blocks& blocks, Path path, const std::function<Status()>& while_away = {});
  Result<Sample> Operate(
      const std::string& verb,
      const std::function<Result<OperationResult>(Session&, const OperationOptions&)>& operation);
  Status MeasureWire(const Blocks& blocks);
  Status MeasureHashing();
  Result<Blocks> Start(uint64_t size, uint64_t allocation, const std::string& agent);
  void ReleaseArena(const process::ProcessId& id);
  Result<uint64_t> FreeBytes();
  void Progress(const std::string& what) {
    if (options_.progress) options_.progress(what);
  }

  const Paths& paths_;
  const MeasureOptions& options_;
  gpu_state::Services services_;  // for all operations
  Measurements found_;
};

Status Bench::CheckCancelled() const {
  if (!options_.cancelled || !options_.cancelled()) return {};
  return Fail(Code::kCancelled, "cancelled");
}

Result<uint64_t> Bench::FreeBytes() {
  STASIS_ASSIGN(auto gpus, services_.device->Gpus());
  for (const auto& gpu : gpus) {
    if (gpu.uuid == options_.gpu.uuid) return gpu.free_bytes;
  }
  return Fail(Code::kNotFound, "GPU " + options_.gpu.uuid.value + " is gone");
}

Status Bench::CheckRoom() {
  const bool soft = !abi::IsHardware(found_.driver.kind);
  const uint64_t on_gpu = options_.size_bytes + options_.size_bytes / 32 +
                          (soft ? kSoftwareContextBytes : kContextBytes);
  if (on_gpu > found_.gpu.free_bytes) {
    return Fail(Code::kResourceExhausted,
                fmt::format("GPU {} has {} free, but --size and two contexts need {}",
                            found_.gpu.index, Mib(found_.gpu.free_bytes), Mib(on_gpu)),
                "use a smaller --size or another --gpu, or end other programs on this GPU; `stasis "
                "gpu ls` lists them");
  }
  dataplane::ArenaOptions arena;
  arena.ignore_memory_check = options_.ignore_memory;
  STASIS_ASSIGN(auto store, dataplane::ArenaStore::Open(paths_, arena));
  STASIS_ASSIGN(auto arenas, store.List());
  for (const auto& known : arenas) {
    if (!known.record && !known.in_use) found_.arena_reserved_bytes += known.capacity_bytes;
  }
  STASIS_ASSIGN(uint64_t room, dataplane::RoomIn(store.places().front(), options_.ignore_memory));
  if (room + found_.arena_reserved_bytes < options_.size_bytes) {
    return Fail(Code::kResourceExhausted,
                fmt::format("{} has {} free, but the GPU data needs {}",
                            store.places().front().path, Mib(room), Mib(options_.size_bytes)),
                "use a smaller --size, or --ignore-memory on a machine that gets more memory on "
                "demand");
  }
  if (options_.ignore_memory || options_.driver_rounds == 0) return {};
  return gpu_state::CheckHostMemory(options_.size_bytes, {::getpid()});
}

Result<Blocks> Bench::Start(uint64_t size, uint64_t allocation, const std::string& agent) {
  STASIS_TRY(CheckCancelled());
  BlocksOptions blocks;
  blocks.gpu = options_.gpu.uuid;
  blocks.size_bytes = size;
  blocks.allocation_bytes = allocation;
  blocks.agent = agent;
  blocks.cancelled = options_.cancelled;
  return Blocks::Start(blocks);
}

Result<Sample> Bench::Operate(
    const std::string& verb,
    const std::function<Result<OperationResult>(Session&, const OperationOptions&)>& operation) {
  STASIS_TRY(CheckCancelled());
  // Open a new session for each operation, because a journal belongs to one operation.
  STASIS_ASSIGN(Session session, operations::OpenSession(paths_, options_.settings, verb,
                                                         options_.stasis_version, true));
  session.services = services_;
  OperationOptions options;
  options.ignore_memory = options_.ignore_memory;
  options.cancelled = options_.cancelled;
  Stopwatch watch;
  STASIS_ASSIGN(OperationResult result, operation(session, options));
  return Sample{watch.Seconds(), std::move(result)};
}

Result<Round> Bench::OneRound(Blocks& blocks, Path path,
                              const std::function<Status()>& while_away) {
  STASIS_TRY(blocks.Fill());
  Round round;
  STASIS_ASSIGN(round.suspend,
                Operate("suspend", [&](Session& session, const OperationOptions& options) {
                  OperationOptions run = options;
                  run.driver_alone = path == Path::kDriver;
                  run.keep_stack_limits = path == Path::kSharedStacksKept;
                  return operations::Suspend(session, blocks.target(), run);
                }));
  const OperationResult& result = round.suspend.result;
  if (path != Path::kDriver && result.shared_bytes < options_.size_bytes) {
    std::string why;
    for (const auto& sentence : result.left_to_driver) why += "; " + sentence;
    return Fail(Code::kUnimplemented,
                fmt::format("the data plane carried {} of {}{}", Mib(result.shared_bytes),
                            Mib(options_.size_bytes), why),
                "`stasis check` checks this machine");
  }
  STASIS_ASSIGN(uint64_t free, FreeBytes());
  round.held_bytes = found_.gpu.free_bytes - std::min(free, found_.gpu.free_bytes);
  if (while_away) STASIS_TRY(while_away());
  STASIS_ASSIGN(round.resume,
                Operate("resume", [&](Session& session, const OperationOptions& options) {
                  return operations::Resume(session, blocks.target(), {}, options);
                }));
  STASIS_TRY(blocks.Verify());
  return round;
}

Status Bench::MeasureWire(const Blocks& blocks) {
  auto& movers = *services_.movers;
  const dataplane::ArenaKey key{blocks.target().root, options_.gpu.uuid};
  auto arena = movers.TakeArena(key);
  if (!arena) return Fail(Code::kInternal, "the arena of the measured program is gone");
  // The mover still has the arena attached and registered, as in a save of a warm round.
  auto speed = movers.MoverOf(options_.gpu.uuid)
                   .Measure(std::min(kWireBytes, options_.size_bytes), Deadline::In(kWireTimeout));
  movers.KeepArena(std::move(*arena));
  STASIS_ASSIGN(found_.wire, Annotate(std::move(speed), "measure the speed of the bus"));
  return {};
}

Status Bench::MeasureHashing() {
  STASIS_ASSIGN(const uint64_t free, FreeBytes());
  const uint64_t most = abi::IsHardware(found_.driver.kind) ? kHashingBytes : kSoftwareHashingBytes;
  auto speed = services_.movers->MoverOf(options_.gpu.uuid)
                   .MeasureHashing(std::min(most, free / 4 * 3), Deadline::In(kWireTimeout));
  if (!speed && speed.error().code == Code::kUnimplemented) {
    found_.why_no_hashing = speed.error().ToString();
    return {};
  }
  STASIS_ASSIGN(found_.hashing, Annotate(std::move(speed), "measure how fast blocks are hashed"));
  return {};
}

void Bench::ReleaseArena(const process::ProcessId& id) {
  auto& movers = *services_.movers;
  movers.StopMovers();
  if (auto arena = movers.TakeArena({id, options_.gpu.uuid})) {
    if (auto store = dataplane::ArenaStore::Open(paths_)) {
      // Host memory that was reserved before the bench (`stasis arena reserve`) stays reserved.
      (void)(found_.arena_reserved_bytes > 0 ? store->Recycle(std::move(*arena))
                                             : store->Remove(std::move(*arena)));
    }
  }
  (void)gpu_state::ForgetSuspended(paths_, id);
}

Result<SharedRun> Bench::MeasureShared(uint64_t allocation_bytes) {
  SharedRun run;
  run.allocation_bytes = allocation_bytes;
  run.allocations = (options_.size_bytes + allocation_bytes - 1) / allocation_bytes;
  STASIS_ASSIGN(std::string agent, jobs::InstallAgentLibrary(paths_));
  const std::string what =
      fmt::format("shared path, {} allocations of {}", run.allocations, Mib(allocation_bytes));
  Progress(what + ": start");
  std::optional<process::ProcessId> id;
  auto rounds = [&]() -> Status {
    STASIS_ASSIGN(Blocks blocks, Start(options_.size_bytes, allocation_bytes, agent));
    id = blocks.target().root;
    Progress(what + ": cold");
    STASIS_ASSIGN(run.cold, Annotate(OneRound(blocks, Path::kShared), "the cold round"));
    for (int i = 1; i <= options_.rounds; ++i) {
      Progress(fmt::format("{}: round {} of {}", what, i, options_.rounds));
      std::function<Status()> while_away;
      if (i == options_.rounds && found_.shared.empty()) {
        while_away = [&]() -> Status {
          STASIS_TRY(MeasureWire(blocks));
          return MeasureHashing();
        };
      }
      STASIS_ASSIGN(Round round, Annotate(OneRound(blocks, Path::kShared, while_away),
                                          fmt::format("round {}", i)));
      run.warm.push_back(std::move(round));
    }
    for (int i = 1; i <= kStackRounds && found_.shared.empty(); ++i) {
      Progress(
          fmt::format("{}: with unchanged stack limits, round {} of {}", what, i, kStackRounds));
      STASIS_ASSIGN(Round round, Annotate(OneRound(blocks, Path::kSharedStacksKept),
                                          fmt::format("round {} with stack limits kept", i)));
      run.stacks_kept.push_back(std::move(round));
    }
    return blocks.Finish();
  };
  Status done = rounds();
  if (id) ReleaseArena(*id);
  STASIS_TRY(Annotate(std::move(done), what));
  return run;
}

Result<std::vector<Round>> Bench::MeasureRounds(Blocks& blocks, int count,
                                                const std::string& what) {
  std::vector<Round> rounds;
  auto all = [&]() -> Status {
    for (int i = 1; i <= count; ++i) {
      Progress(fmt::format("{}: round {} of {}", what, i, count));
      STASIS_ASSIGN(Round round,
                    Annotate(OneRound(blocks, Path::kDriver), fmt::format("round {}", i)));
      rounds.push_back(std::move(round));
    }
    return blocks.Finish();
  };
  Status done = all();
  (void)gpu_state::ForgetSuspended(paths_, blocks.target().root);
  STASIS_TRY(std::move(done));
  return rounds;
}

Result<DriverRun> Bench::MeasureDriver(const std::string& huge_pages) {
  const std::string what = "the driver alone, huge pages " + huge_pages;
  auto measure = [&]() -> Result<DriverRun> {
    Progress(what + ": start");
    STASIS_ASSIGN(Blocks blocks, Start(options_.size_bytes, options_.allocation_bytes.front(), ""));
    STASIS_ASSIGN(auto rounds, MeasureRounds(blocks, options_.driver_rounds, what));
    return DriverRun{huge_pages, std::move(rounds)};
  };
  return Annotate(measure(), what);
}

Result<Measurements> Bench::Run() {
  Stopwatch watch;
  found_.size_bytes = options_.size_bytes;
  found_.gpu = options_.gpu;
  STASIS_ASSIGN(found_.driver, services_.device->Driver());
  STASIS_ASSIGN(found_.gpu.free_bytes, FreeBytes());
  found_.huge_pages = HugePages();
  STASIS_TRY(CheckRoom());
  if (options_.huge_pages) {
    // Set the current value, to check whether the setting can be changed.
    STASIS_ASSIGN(auto allowed, HugePagesSetting::Set(found_.huge_pages));
  }

  for (uint64_t allocation_bytes : options_.allocation_bytes) {
    STASIS_ASSIGN(SharedRun run, MeasureShared(allocation_bytes));
    found_.shared.push_back(std::move(run));
  }
  if (options_.driver_rounds > 0) {
    std::vector<std::string> modes = {found_.huge_pages};
    if (options_.huge_pages) modes = {"madvise", "always"};
    for (const std::string& mode : modes) {
      std::optional<HugePagesSetting> setting;
      if (options_.huge_pages) {
        STASIS_ASSIGN(setting, HugePagesSetting::Set(mode));
      }
      STASIS_ASSIGN(DriverRun run, MeasureDriver(mode));
      found_.driver_alone.push_back(std::move(run));
    }
  }
  const std::string what = "a context without memory";
  Progress(what + ": start");
  auto control = [&]() -> Result<std::vector<Round>> {
    STASIS_ASSIGN(Blocks bare, Start(0, 0, ""));
    return MeasureRounds(bare, options_.rounds, what);
  };
  STASIS_ASSIGN(found_.control, Annotate(control(), what));
  found_.total_s = watch.Seconds();
  return std::move(found_);
}

}  // namespace

Result<Measurements> Measure(const Paths& paths, const MeasureOptions& options) {
  return Bench(paths, options).Run();
}

}  // namespace stasis::bench
