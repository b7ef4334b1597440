#include "operations/data_ahead.h"

#include <algorithm>
#include <utility>

#include "checkpoint/image_data.h"
#include "gpu_state/shared_resume.h"

namespace stasis::operations {

using gpu_state::GpuShard;

void DataAhead::Free() {
  for (GpuShard& shard : shards_) {
    if (shard.arena) (void)store_->Recycle(std::move(*shard.arena));
  }
  shards_.clear();
}

void DataAhead::MoveTo(std::vector<GpuShard>& shards) {
  for (GpuShard& shard : shards) {
    const auto loaded = std::find_if(shards_.begin(), shards_.end(),
                                     [&](const GpuShard& s) { return s.key == shard.key; });
    if (loaded == shards_.end() || loaded->owner != shard.owner) continue;
    shard.arena = std::exchange(loaded->arena, std::nullopt);
    for (size_t i = 0; i < loaded->ranges.size(); ++i) {
      const dataplane::Range& range = loaded->ranges[i];
      shard.ahead[range.arena_offset] = {range, loaded->places[i]};
    }
    shards_.erase(loaded);
  }
  Free();
}

Status DataAhead::AllocateAndRead(const store::RangeSource& source,
                                  const std::function<bool(uint64_t)>& progress) {
  std::vector<GpuShard*> shards;
  for (GpuShard& shard : shards_) {
    STASIS_TRY(gpu_state::GiveArena(*store_, shard));
    shards.push_back(&shard);
  }
  STASIS_TRY(checkpoint::ReadShards(source, shards, progress, [] {}));
  for (GpuShard& shard : shards_) shard.ahead.clear();
  return {};
}

Status DataAhead::Load(const store::Manifest& manifest, const store::RangeSource& source,
                       const std::function<bool(uint64_t)>& progress) {
  auto load = [&]() -> Status {
    STASIS_ASSIGN(
        auto shards,
        checkpoint::ShardsIn(manifest, gpu_state::SharedResume::ExpectedProcess, manifest.job.uid));
    if (!store_ && !shards.empty()) {
      dataplane::ArenaOptions options;
      options.most_bytes = most_arena_bytes_;
      STASIS_ASSIGN(store_, dataplane::ArenaStore::Open(paths_, options));
    }
    MoveTo(shards);
    shards_ = std::move(shards);
    return AllocateAndRead(source, progress);
  };
  Status loaded = load();
  if (!loaded) Free();
  return loaded;
}

Status DataAhead::Register(gpu_state::Services& services, const device::GpuMap& map,
                           const std::stop_token& stop, const Deadline& deadline) {
  const auto to = [&](const device::GpuUuid& gpu) { return device::Mapped(map, gpu); };
  return gpu_state::ForEachGpu(
      shards_, to, [&](const device::GpuUuid& gpu, std::vector<GpuShard*>& shards) -> Status {
        dataplane::MoverLink& mover = services.movers->MoverOf(gpu);
        STASIS_TRY(mover.Start(deadline));
        for (GpuShard* shard : shards) {
          STASIS_TRY(mover.Attach(*shard->arena, deadline));
          Status registered = mover.Warm(shard->arena_bytes(), stop, deadline);
          // Detach, because an arena is locked as long as it is attached.
          Status detached = mover.Detach(deadline);
          STASIS_TRY(std::move(registered));
          STASIS_TRY(std::move(detached));
        }
        return {};
      });
}

}  // namespace stasis::operations
