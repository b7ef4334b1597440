#include "gpu_state/gpu_room.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/file.h"
#include "base/file_lock.h"
#include "device/gpu_map.h"
#include "gpu_state/gpu_shards.h"

namespace stasis::gpu_state {
namespace {

using device::Gpu;
using device::GpuUuid;
using plan::RecordedProcess;

constexpr std::chrono::seconds kMoversStop{20};

// Returns the GPUs of the process after the restore; empty if unknown or not in this machine.
std::vector<const Gpu*> TargetsOf(const RecordedProcess& process, const device::GpuMap& map,
                                  const std::vector<Gpu>& gpus) {
  std::vector<const Gpu*> targets;
  for (const GpuUuid& old : process.gpus) {
    const GpuUuid wanted = device::Mapped(map, old);
    auto it =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == wanted; });
    if (it == gpus.end()) return {};
    targets.push_back(&*it);
  }
  return targets;
}

}  // namespace

Status CheckRoom(const std::vector<Gpu>& gpus, const std::vector<RecordedProcess>& processes,
                 const device::GpuMap& map) {
  std::map<const Gpu*, uint64_t> left;
  for (const Gpu& gpu : gpus) left[&gpu] = gpu.free_bytes;
  // Place the processes that use one GPU first. The memory of a process on several GPUs can then go
  // where room is left.
  std::vector<RecordedProcess> ordered = processes;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.gpus.size() < b.gpus.size(); });
  for (const auto& process : ordered) {
    auto targets = TargetsOf(process, map, gpus);
    if (targets.empty()) continue;
    uint64_t room = 0;
    std::vector<int> indices;
    for (const Gpu* gpu : targets) {
      room += left[gpu];
      indices.push_back(gpu->index);
    }
    if (room < process.device_bytes) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("GPU {} has {} MiB free, and process {} needs {} MiB",
                              fmt::join(indices, "+"), room >> 20, process.id.pid.value,
                              process.device_bytes >> 20),
                  "suspend or end other programs on that GPU; `stasis gpu ls` lists them");
    }
    uint64_t needed = process.device_bytes;
    for (const Gpu* gpu : targets) {
      uint64_t taken = std::min(needed, left[gpu]);
      left[gpu] -= taken;
      needed -= taken;
    }
  }
  return {};
}

Result<GpuRoom> GpuRoom::Hold(const Services& services,
                              const std::vector<RecordedProcess>& processes,
                              const device::GpuMap& map, const Deadline& deadline) {
  GpuRoom room;
  if (processes.empty()) return room;
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  std::set<GpuUuid> wanted;  // sorted: all processes lock in the same order, so none deadlocks
  for (const auto& process : processes) {
    auto targets = TargetsOf(process, map, gpus);
    for (const Gpu* gpu : targets) wanted.insert(gpu->uuid);
    if (!targets.empty()) continue;
    for (const Gpu& gpu : gpus) wanted.insert(gpu.uuid);
  }
  for (const GpuUuid& uuid : wanted) {
    std::string path = services.paths.run + "/gpu-" + uuid.value + ".lock";
    STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDWR | O_CREAT, 0600));
    Status locked = LockUntil(fd.get(), deadline);
    if (!locked && locked.error().code == Code::kDeadlineExceeded) {
      locked.error().message =
          "another program's GPU state is still being restored to GPU " + uuid.value;
    }
    STASIS_TRY(std::move(locked));
    room.locks_.push_back(std::move(fd));
  }
  // The free memory may have changed during the wait.
  STASIS_TRY(RetryWithoutIdleMovers(services, [&]() -> Status {
    STASIS_ASSIGN(gpus, services.device->Gpus());
    return CheckRoom(gpus, processes, map);
  }));
  return room;
}

Status RetryWithoutIdleMovers(const Services& services, const std::function<Status()>& check) {
  Status found = check();
  if (found || found.error().code != Code::kResourceExhausted) return found;
  auto stopped = services.movers->StopIdleMovers(Deadline::In(kMoversStop));
  return stopped.value_or(0) == 0 ? found : check();
}

Status RetryWithoutUnusedArenas(const Services& services, const std::function<Status()>& check) {
  Status found = check();
  if (found || found.error().code != Code::kResourceExhausted) return found;
  auto store = ExistingArenas(services.paths);
  if (!store || store->FreeUnused(/*keep_of_running=*/false).value_or(0) == 0) return found;
  // Idle movers keep the freed arenas registered for a while.
  (void)services.movers->StopIdleMovers(Deadline::In(kMoversStop));
  return check();
}

}  // namespace stasis::gpu_state
