// A shard is the GPU data of one process on one GPU: one arena holds it and one mover copies it. An
// agent lists the memory on all GPUs of its process; the functions here split that list into
// shards.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent_protocol/protocol.h"
#include "dataplane/arena.h"
#include "dataplane/load_source.h"
#include "dataplane/range.h"

namespace stasis::gpu_state {

struct GpuShard {
  dataplane::ArenaKey key;
  uid_t owner = 0;
  size_t member = 0;                     // index of its process in the list of members
  std::vector<dataplane::Range> ranges;  // laid out
  std::vector<size_t> places;            // index of each range in the agent's list
  std::optional<dataplane::Arena> arena;
  // A range of an earlier image, and its index in that image's manifest.
  struct EarlierRange {
    dataplane::Range range;
    size_t index;
  };
  // The ranges of an earlier image that are in the arena, by their offsets there
  // (operations/data_ahead.h).
  std::map<uint64_t, EarlierRange> ahead;
  // The number of bytes at the start of the arena that have been read from an image so far. Null if
  // the arena is already full.
  std::shared_ptr<std::atomic<uint64_t>> filled;
  // If set, the memory is loaded from here, and there is no arena.
  std::shared_ptr<const dataplane::LoadSource> source;
  std::vector<UniqueFd> memory;                  // new, filled GPU memory; one for each range
  std::optional<Id128> checksum;                 // only for data on disk
  std::optional<dataplane::ArenaHashes> hashes;  // hashes of its blocks when they were saved

  uint64_t bytes() const;
  // Returns the bytes from the beginning of the arena to the end of the last range.
  uint64_t arena_bytes() const { return dataplane::UsedBytes(ranges); }
};

// Returns kInvalidArgument for sizes that no GPU has.
Result<std::vector<GpuShard>> ShardsOf(const process::ProcessId& process, uid_t owner,
                                       size_t member,
                                       const std::vector<agent_protocol::Range>& list);

// Allocates an arena for the shard, or adapts the one that it has, which keeps its bytes.
Status GiveArena(dataplane::ArenaStore& store, GpuShard& shard);

// Returns the size of all shards, or of those of one process.
uint64_t ShardBytes(const std::vector<GpuShard>& shards);
uint64_t ShardBytes(const std::vector<GpuShard>& shards, const process::ProcessId& id);

// Returns the arenas of this user, or nothing if no place for arenas exists. Creates no place.
std::optional<dataplane::ArenaStore> ExistingArenas(const Paths& paths);

// A program whose memory is in an arena of the user who suspended it.
struct ArenaOfOther {
  uid_t user = 0;
  process::ProcessId process;
};
// Lists live programs only. Only root can see arenas of other users, and only those in /dev/shm.
std::vector<ArenaOfOther> ArenasOfOthers();

// Returns true if both are the same allocations in the same order; their places in the arena may
// differ.
bool SameMemory(const std::vector<dataplane::Range>& a, const std::vector<dataplane::Range>& b);

// Runs `step` once for every GPU with the shards on it, in parallel, and returns the first error.
// `to` maps the GPU of a shard to the GPU on which the step works.
Status ForEachGpu(
    std::vector<GpuShard>& shards, const std::function<device::GpuUuid(const device::GpuUuid&)>& to,
    const std::function<Status(const device::GpuUuid&, std::vector<GpuShard*>&)>& step);

}  // namespace stasis::gpu_state
