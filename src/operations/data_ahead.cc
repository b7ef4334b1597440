#include "operations/data_ahead.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "checkpoint/image_data.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/shared_resume.h"
#include "operations/recorded.h"

namespace stasis::operations {

using gpu_state::GpuShard;

namespace {

// Registers the shards' arenas with one mover. Returns why this does not help the restore; empty if
// it does.
Result<std::string> RegisterWith(dataplane::MoverLink& mover, const device::GpuUuid& gpu,
                                 const std::vector<GpuShard*>& shards, const std::stop_token& stop,
                                 const Deadline& deadline) {
  STASIS_ASSIGN(const dataplane::MoverInfo info, mover.Start(deadline));
  if (info.ends_with_client) {
    return fmt::format(
        "the resident mover of GPU {} was busy or could not be started, so the pause includes the "
        "registration of the GPU memory",
        gpu.value);
  }
  bool all_registered = true;
  for (const GpuShard* shard : shards) {
    STASIS_TRY(mover.Attach(*shard->arena, deadline));
    const auto registered = mover.Warm(shard->arena_bytes(), stop, deadline);
    // The arena is locked as long as it is attached.
    const Status detached = mover.Detach(deadline);
    if (!registered) return Fail(registered.error());
    if (!detached) return Fail(detached.error());
    all_registered = all_registered && *registered;
  }
  if (all_registered) return std::string();
  return fmt::format(
      "the driver does not register the GPU memory in host memory for GPU {}, so it is loaded "
      "during the pause through staging buffers, which is slower",
      gpu.value);
}

}  // namespace

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

uint64_t DataAhead::FreeArenaBytes() const {
  auto store = gpu_state::ExistingArenas(paths_);
  if (!store) return 0;
  uint64_t bytes = 0;
  for (const auto& arena : store->List().value_or(std::vector<dataplane::ArenaInfo>())) {
    const bool is_free = !arena.in_use && (arena.kept || !arena.record);
    if (is_free && arena.in_memory) bytes += arena.capacity_bytes;
  }
  return bytes;
}

Status DataAhead::CheckMemory(const store::Manifest& manifest) const {
  uint64_t needed = 0;
  for (const auto& range : manifest.ranges) needed += range.size_bytes;
  needed -= std::min(needed, bytes());
  needed += CpuBytes(manifest);
  needed -= std::min(needed, FreeArenaBytes());
  return gpu_state::CheckHostMemory(needed, {::getpid()});
}

Result<std::vector<std::string>> DataAhead::Register(gpu_state::Services& services,
                                                     const device::GpuMap& map,
                                                     const std::stop_token& stop,
                                                     const Deadline& deadline) {
  std::mutex mutex;  // guards the sentences, because the GPUs' steps run in parallel
  std::vector<std::string> sentences;
  const auto to = [&](const device::GpuUuid& gpu) { return device::Mapped(map, gpu); };
  STASIS_TRY(gpu_state::ForEachGpu(
      shards_, to, [&](const device::GpuUuid& gpu, std::vector<GpuShard*>& shards) -> Status {
        STASIS_ASSIGN(std::string sentence,
                      RegisterWith(services.movers->MoverOf(gpu), gpu, shards, stop, deadline));
        const std::lock_guard lock(mutex);
        if (!sentence.empty()) sentences.push_back(std::move(sentence));
        return {};
      }));
  return sentences;
}

}  // namespace stasis::operations
