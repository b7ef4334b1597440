#include "gpu_state/gpu_shards.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/file.h"
#include "base/parallel.h"
#include "gpu_state/agents.h"

namespace stasis::gpu_state {

uint64_t GpuShard::bytes() const {
  uint64_t sum = 0;
  for (const auto& range : ranges) sum += range.size_bytes;
  return sum;
}

Status GiveArena(dataplane::ArenaStore& store, GpuShard& shard) {
  if (!shard.arena) {
    STASIS_ASSIGN(shard.arena, store.Acquire(shard.key, shard.owner, shard.ranges));
    return {};
  }
  if (shard.arena->record().ranges == shard.ranges) return {};
  return store.Reshape(*shard.arena, shard.ranges);
}

uint64_t ShardBytes(const std::vector<GpuShard>& shards) {
  uint64_t sum = 0;
  for (const GpuShard& shard : shards) sum += shard.bytes();
  return sum;
}

uint64_t ShardBytes(const std::vector<GpuShard>& shards, const process::ProcessId& id) {
  uint64_t sum = 0;
  for (const GpuShard& shard : shards) sum += shard.key.process == id ? shard.bytes() : 0;
  return sum;
}

Result<std::vector<GpuShard>> ShardsOf(const process::ProcessId& process, uid_t owner,
                                       size_t member,
                                       const std::vector<agent_protocol::Range>& list) {
  std::vector<GpuShard> shards;
  for (size_t i = 0; i < list.size(); ++i) {
    device::GpuUuid gpu = UuidOf(list[i].device);
    auto shard = std::find_if(shards.begin(), shards.end(),
                              [&](const GpuShard& l) { return l.key.gpu == gpu; });
    if (shard == shards.end()) {
      shards.emplace_back();
      shard = shards.end() - 1;
      shard->key = {process, gpu};
      shard->owner = owner;
      shard->member = member;
    }
    shard->ranges.push_back({list[i].address, list[i].size_bytes, 0, 0});
    shard->places.push_back(i);
  }
  for (GpuShard& shard : shards) STASIS_TRY(dataplane::LayOut(shard.ranges));
  return shards;
}

std::optional<dataplane::ArenaStore> ExistingArenas(const Paths& paths) {
  const std::string shared_memory = "/dev/shm/stasis-" + std::to_string(::geteuid());
  if (paths.arena.empty() && !PathExists(paths.run + "/arena") && !PathExists(shared_memory)) {
    return std::nullopt;
  }
  dataplane::ArenaOptions options;
  options.look_only = true;
  auto store = dataplane::ArenaStore::Open(paths, options);
  if (!store || store->places().empty()) return std::nullopt;
  return std::move(*store);
}

std::vector<ArenaOfOther> ArenasOfOthers() {
  constexpr std::string_view kPlaces = "/dev/shm";
  std::vector<ArenaOfOther> kept;
  auto places = ListDir(std::string(kPlaces));
  if (!places) return kept;
  for (const std::string& place : *places) {
    ArenaOfOther one;
    if (std::sscanf(place.c_str(), "stasis-%u", &one.user) != 1 || one.user == ::geteuid()) {
      continue;
    }
    auto files = ListDir(fmt::format("{}/{}", kPlaces, place));
    if (!files) continue;
    for (const std::string& file : *files) {
      // arena.h: PID-START-UUID.data
      if (!file.ends_with(".data") ||
          std::sscanf(file.c_str(), "%d-%" SCNu64, &one.process.pid.value,
                      &one.process.start_time) != 2) {
        continue;
      }
      const bool known = std::any_of(kept.begin(), kept.end(),
                                     [&](const auto& k) { return k.process == one.process; });
      if (!known && process::IsAlive(one.process)) kept.push_back(one);
    }
  }
  return kept;
}

bool SameMemory(const std::vector<dataplane::Range>& a, const std::vector<dataplane::Range>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.va == y.va && x.size_bytes == y.size_bytes;
  });
}

Status ForEachGpu(
    std::vector<GpuShard>& shards, const std::function<device::GpuUuid(const device::GpuUuid&)>& to,
    const std::function<Status(const device::GpuUuid&, std::vector<GpuShard*>&)>& step) {
  std::map<device::GpuUuid, std::vector<GpuShard*>> by_gpu;
  for (GpuShard& shard : shards) by_gpu[to(shard.key.gpu)].push_back(&shard);
  std::vector<std::pair<const device::GpuUuid, std::vector<GpuShard*>>*> gpus;
  for (auto& gpu : by_gpu) gpus.push_back(&gpu);
  return InParallel(gpus.size(), [&](size_t i) {
    return Annotate(step(gpus[i]->first, gpus[i]->second), gpus[i]->first.value);
  });
}

}  // namespace stasis::gpu_state
