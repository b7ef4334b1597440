#include "gpu_state/shared_lots.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/file.h"
#include "base/parallel.h"
#include "gpu_state/agents.h"

namespace stasis::gpu_state {

uint64_t Lot::bytes() const {
  uint64_t sum = 0;
  for (const auto& range : ranges) sum += range.size_bytes;
  return sum;
}

Result<std::vector<Lot>> LotsOf(const process::ProcessId& process, uid_t owner, size_t member,
                                const std::vector<agent_protocol::Range>& list) {
  std::vector<Lot> lots;
  for (size_t i = 0; i < list.size(); ++i) {
    device::GpuUuid gpu = UuidOf(list[i].device);
    auto lot =
        std::find_if(lots.begin(), lots.end(), [&](const Lot& l) { return l.key.gpu == gpu; });
    if (lot == lots.end()) {
      lots.emplace_back();
      lot = lots.end() - 1;
      lot->key = {process, gpu};
      lot->owner = owner;
      lot->member = member;
    }
    lot->ranges.push_back({list[i].address, list[i].size_bytes, 0, 0});
    lot->places.push_back(i);
  }
  for (Lot& lot : lots) STASIS_TRY(dataplane::LayOut(lot.ranges));
  return lots;
}

std::optional<dataplane::ArenaStore> ArenasThereAre(const Paths& paths) {
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

std::vector<KeptByOther> KeptByOthers() {
  constexpr std::string_view kPlaces = "/dev/shm";
  std::vector<KeptByOther> kept;
  auto places = ListDir(std::string(kPlaces));
  if (!places) return kept;
  for (const std::string& place : *places) {
    KeptByOther one;
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

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

bool SameMemory(const std::vector<dataplane::Range>& a, const std::vector<dataplane::Range>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.va == y.va && x.size_bytes == y.size_bytes;
  });
}

Status ForEachGpu(std::vector<Lot>& lots,
                  const std::function<device::GpuUuid(const device::GpuUuid&)>& to,
                  const std::function<Status(const device::GpuUuid&, std::vector<Lot*>&)>& step) {
  std::map<device::GpuUuid, std::vector<Lot*>> by_gpu;
  for (Lot& lot : lots) by_gpu[to(lot.key.gpu)].push_back(&lot);
  std::vector<std::pair<const device::GpuUuid, std::vector<Lot*>>*> gpus;
  for (auto& gpu : by_gpu) gpus.push_back(&gpu);
  return InParallel(gpus.size(), [&](size_t i) {
    return Annotate(step(gpus[i]->first, gpus[i]->second), gpus[i]->first.value);
  });
}

}  // namespace stasis::gpu_state
