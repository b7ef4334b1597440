// A lot is the data of one process on one GPU: what one arena holds and one mover copies. An agent
// lists the memory of all GPUs of its process; here that list is taken apart and put together
// again.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/arena.h"
#include "wire/protocol.h"

namespace stasis::gpu_state {

struct Lot {
  dataplane::ArenaKey key;
  uid_t owner = 0;
  size_t member = 0;                     // of the list of those who take part
  std::vector<dataplane::Range> ranges;  // laid out
  std::vector<size_t> places;            // of each range in the agent's list
  std::optional<dataplane::Arena> arena;
  // Of the arena, from its begin on, what has been read from an image; null: it is full.
  std::shared_ptr<std::atomic<uint64_t>> filled;
  std::vector<UniqueFd> memory;                // made anew on a GPU and filled; one for each range
  std::optional<Id128> checksum;               // of data on disk
  std::optional<dataplane::ArenaNames> names;  // of its blocks, as they were saved

  uint64_t bytes() const;
};

// kInvalidArgument for sizes that no GPU can have.
Result<std::vector<Lot>> LotsOf(const process::ProcessId& process, uid_t owner, size_t member,
                                const std::vector<wire::Range>& list);

// The arenas of this user, if any was ever made: no place is made for them.
std::optional<dataplane::ArenaStore> ArenasThereAre(const Paths& paths);

// A program whose memory lies in an arena of another user, who suspended it.
struct KeptByOther {
  uid_t user = 0;
  process::ProcessId process;
};
// Those that live, as far as we may look: only root sees any, and only those in /dev/shm.
std::vector<KeptByOther> KeptByOthers();

// We hold a descriptor of every piece of memory: as many as we may have.
void RaiseDescriptorLimit();

// The same allocations in the same order; where they lie in an arena does not matter.
bool SameMemory(const std::vector<dataplane::Range>& a, const std::vector<dataplane::Range>& b);

// Runs `step` once for every GPU with the lots on it, in parallel; the first error. `to` says on
// which GPU a lot is meant to be.
Status ForEachGpu(std::vector<Lot>& lots,
                  const std::function<device::GpuUuid(const device::GpuUuid&)>& to,
                  const std::function<Status(const device::GpuUuid&, std::vector<Lot*>&)>& step);

}  // namespace stasis::gpu_state
