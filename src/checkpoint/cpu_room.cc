#include "checkpoint/cpu_room.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "dataplane/arena_place.h"
#include "process/control_group.h"

namespace stasis::checkpoint {
namespace {

// What the program may allocate between the reading and the stop.
uint64_t MarginOf(uint64_t bytes) { return bytes / 8 + (64 << 20); }

std::string OnDisk(const std::string& reason) {
  return fmt::format(
      "CRIU wrote the program's CPU memory to the image's disk while the program was stopped: {}",
      reason);
}

}  // namespace

CpuRoomNeed NeededCpuRoom(const process::ProcessTree& tree, uint64_t driver_bytes) {
  CpuRoomNeed need{driver_bytes, 0};
  uint64_t shared = 0;
  for (const process::Stat& member : tree.members) {
    const auto use = process::ReadMemoryUse(member.id.pid);
    if (!use) continue;
    need.expected_bytes += use->anonymous_bytes + use->swapped_bytes;
    shared += use->shared_bytes;
  }
  need.most_bytes = need.expected_bytes + shared;
  need.most_bytes += MarginOf(need.most_bytes);
  return need;
}

uint64_t AvailableHostMemory() {
  return std::min(dataplane::MemoryAvailable(),
                  process::MemoryLeftInControlGroups({::getpid()}).beyond_reserve());
}

CpuRoom MakeCpuRoom(const CpuRoomNeed& need, uint64_t driver_bytes, uint64_t available_bytes,
                    int criu_folder_fd, size_t files) {
  // As much again stays free, because the program runs again before the memory is written.
  const uint64_t needed = 2 * need.most_bytes + driver_bytes;
  if (needed > available_bytes) {
    return {nullptr, OnDisk(fmt::format("{} MiB of host memory must be available to avoid this, "
                                        "and {} MiB are",
                                        needed >> 20, available_bytes >> 20))};
  }
  auto streams = PageStreams::Reserve(need.expected_bytes, need.most_bytes);
  if (!streams) return {nullptr, OnDisk(streams.error().ToString())};
  if (Status linked = (*streams)->Link(criu_folder_fd, files); !linked) {
    return {nullptr, OnDisk(linked.error().ToString())};
  }
  return {std::move(*streams), ""};
}

}  // namespace stasis::checkpoint
