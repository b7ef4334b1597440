// The room that a suspend needs before it touches the programs: movers, arenas and free host
// memory.
#include <fmt/format.h>
#include <unistd.h>

#include <set>

#include "base/descriptor_table.h"
#include "base/secret.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/shared_suspend.h"
#include "plan/plan.h"

namespace stasis::gpu_state {
namespace {

using device::GpuUuid;
using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

// Time to create the movers' contexts and to allocate arenas; fallocate takes 25 ms for a GiB.
constexpr seconds kRoomTimeout{120};
constexpr seconds kDetachTimeout{60};

GpuUuid Same(const GpuUuid& gpu) { return gpu; }

size_t GpusOf(const std::vector<GpuShard>& shards) {
  std::set<GpuUuid> gpus;
  for (const GpuShard& shard : shards) gpus.insert(shard.key.gpu);
  return gpus.size();
}

}  // namespace

bool SharedSuspend::PrepareHashes(const GpuUuid& gpu, const Deadline& deadline) {
  if (!secret_) return false;
  Status prepared = services_.movers->MoverOf(gpu).PrepareHashes(*secret_, deadline);
  if (prepared) return true;
  std::lock_guard lock(mutex_);
  why_unhashed_[gpu] = prepared.error().ToString();
  return false;
}

uint64_t SharedSuspend::StagingBytes() const {
  std::set<GpuUuid> gpus;
  for (const GpuShard& shard : shards_) {
    if (shard.arena && !shard.arena->in_memory()) gpus.insert(shard.key.gpu);
  }
  return gpus.size() * kLeastArenaLimitBytes;
}

// Movers are charged to this process's control groups, and the driver to the program's.
dataplane::MemoryRoom SharedSuspend::OwnNeed(uint64_t driver_bytes, uint64_t staging) const {
  const uint64_t all = driver_bytes + staging;
  const bool together =
      !members_.empty() && ShareMemoryLimit({::getpid()}, members_.front().id.pid);
  return {all, together ? all : staging};
}

Status SharedSuspend::CheckMemory(uint64_t driver_bytes) const {
  const uint64_t staging = StagingBytes();
  const uint64_t all = driver_bytes + staging;
  if (options_.ignore_memory || all == 0 || members_.empty()) return {};
  const process::HostPid program = members_.front().id.pid;
  return RetryWithoutUnusedArenas(services_, [&]() -> Status {
    STASIS_TRY(CheckHostMemory(OwnNeed(driver_bytes, staging), {::getpid()}));
    const bool together = ShareMemoryLimit({::getpid()}, program);
    return CheckHostMemory({all, together ? all : driver_bytes}, program);
  });
}

std::string SharedSuspend::DescribeOverflow() const {
  if (store_->why_overflow().empty()) return {};
  uint64_t bytes = 0;
  for (const GpuShard& shard : shards_) {
    if (!shard.arena->in_memory()) bytes += shard.bytes();
  }
  return fmt::format("{} MiB of GPU data went through files in {}, which takes longer: {}.",
                     bytes >> 20, options_.overflow_dir, store_->why_overflow());
}

Status SharedSuspend::MakeRoom(uint64_t driver_bytes, const Deadline& deadline) {
  (void)RaiseDescriptorLimit();  // a descriptor for every piece of memory
  dataplane::ArenaOptions options;
  options.spill_dir = options_.spill_dir;
  options.overflow_dir = options_.overflow_dir;
  options.most_own_bytes = options_.arena_limit_bytes;
  if (!options.overflow_dir.empty()) options.keep_free = OwnNeed(driver_bytes, 0);
  options.ignore_memory_check = options_.ignore_memory;
  options.most_bytes = services_.settings.most_arena_bytes;
  STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(services_.paths, options));
  // Start the movers first, so that the check of free host memory for the arenas counts the memory
  // of the movers.
  STASIS_TRY(ForEachGpu(shards_, Same, [&](const GpuUuid& gpu, std::vector<GpuShard*>&) -> Status {
    STASIS_TRY(services_.movers->MoverOf(gpu).Start(deadline));
    return {};
  }));
  std::vector<uint64_t> sizes;
  for (GpuShard& shard : shards_) {
    shard.arena = services_.movers->TakeArena(shard.key);
    if (shard.arena) {
      STASIS_TRY(store_->Reshape(*shard.arena, shard.ranges));
    } else {
      sizes.push_back(dataplane::UsedBytes(shard.ranges));
    }
  }
  // Otherwise the arenas that fit could leave no memory for the buffers of those that do not.
  if (!options_.overflow_dir.empty()) {
    STASIS_ASSIGN(const bool fit, store_->FitInMemory(sizes));
    if (!fit) store_->KeepFree(OwnNeed(driver_bytes, GpusOf(shards_) * kLeastArenaLimitBytes));
  }
  for (GpuShard& shard : shards_) {
    if (shard.arena) continue;
    STASIS_ASSIGN(shard.arena, store_->Acquire(shard.key, shard.owner, shard.ranges));
  }
  overflow_ = DescribeOverflow();
  auto secret = NamingSecretOf(services_.paths);
  if (secret) {
    secret_ = *secret;
    key_ = BlockKey(*secret).id();
  } else {
    for (const GpuShard& shard : shards_) {
      why_unhashed_[shard.key.gpu] = secret.error().ToString();
    }
  }
  return PrepareMovers(deadline);
}

Status SharedSuspend::PrepareMovers(const Deadline& deadline) {
  return ForEachGpu(shards_, Same,
                    [&](const GpuUuid& gpu, std::vector<GpuShard*>& shards) -> Status {
                      dataplane::MoverLink& mover = services_.movers->MoverOf(gpu);
                      STASIS_TRY(mover.Start(deadline));
                      (void)PrepareHashes(gpu, deadline);
                      return mover.Attach(*shards.front()->arena, deadline);
                    });
}

// An arena with the only copy of a program's memory is kept, and `recover` finds it by its name.
void SharedSuspend::AbandonArenas(bool keep_data) {
  (void)AwaitReleased();
  for (GpuShard& shard : shards_) {
    if (!shard.arena) continue;
    const Member& member = members_[shard.member];
    if (shard.arena->record().complete && member.touched && process::IsAlive(member.id)) {
      (void)services_.movers->MoverOf(shard.key.gpu).Detach(Deadline::In(kDetachTimeout));
    } else if (services_.movers->keeps_arenas()) {
      services_.movers->KeepArena(std::move(*shard.arena));
    } else {
      (void)services_.movers->MoverOf(shard.key.gpu).Detach(Deadline::In(kDetachTimeout));
      // An arena that was not written to still has its old data.
      const bool sound = process::IsAlive(member.id) && (keep_data || shard.arena->knows_data());
      (void)(sound ? store_->KeepData(std::move(*shard.arena))
                   : store_->Recycle(std::move(*shard.arena)));
    }
    shard.arena.reset();
  }
}

Phase SharedSuspend::DataRoom(uint64_t driver_bytes) {
  return {.name = "data-room",
          .timeout = kRoomTimeout,
          .run = [this, driver_bytes](PhaseScope& scope) -> Status {
            STASIS_TRY(MakeRoom(driver_bytes, scope.deadline()));
            return CheckMemory(driver_bytes);
          },
          .undo = [this]() -> Status {
            AbandonArenas();
            return {};
          }};
}

}  // namespace stasis::gpu_state
