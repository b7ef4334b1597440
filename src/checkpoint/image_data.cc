#include "checkpoint/image_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>

#include "dataplane/prefault.h"

namespace stasis::checkpoint {
namespace {

using gpu_state::GpuShard;

// Returns the bytes of a range in the mapping of its arena.
std::string_view BytesOf(const dataplane::Mapping& mapping, const dataplane::Range& range) {
  return {mapping.data() + range.arena_offset, range.size_bytes};
}

// Reports kCancelled as kDeadlineExceeded, because a write or read is cancelled only when the
// deadline of the phase has passed.
Status InTime(Status status) {
  if (status || status.error().code != Code::kCancelled) return status;
  return Fail(Code::kDeadlineExceeded, "it took too long");
}

}  // namespace

Result<WrittenData> WriteShards(const store::UnitNames& names, store::ImageWriter& writer,
                                const std::vector<GpuShard*>& shards, store::WriteOptions options,
                                const std::function<bool(uint64_t)>& progress) {
  WrittenData out;
  options.progress = progress;
  std::vector<dataplane::Mapping> mappings;    // blocks are written from these
  std::vector<std::vector<uint8_t>> zeros_of;  // of each shard
  std::vector<store::BlockSource> sources;
  for (const GpuShard* shard : shards) {
    if (shard->ranges.empty()) continue;
    const auto& arena = *shard->arena;
    const auto& known = arena.record().hashes;
    const bool by_hash = arena.record().complete && known && known->key == names.key().id();
    // WriteBlocks compares each block that it reads with its hash.
    if (arena.record().has_checksum && !by_hash) {
      STASIS_ASSIGN(auto found, dataplane::DataChecksum(arena.fd(), arena.record().data_bytes));
      if (found != arena.record().checksum) {
        return Fail(Code::kDataLoss,
                    fmt::format("the data in {} has changed since it was saved", arena.path()));
      }
    }
    STASIS_ASSIGN(auto mapping, dataplane::Mapping::Map(arena.fd(), arena.capacity_bytes()));
    // Hashes with another key are computed again. A block whose recorded hash is zero must be
    // treated as zero in any case, because the arena may contain older data in its place.
    std::span<const Id128> hashes;
    std::vector<uint8_t>& zero_blocks = zeros_of.emplace_back();
    if (by_hash) {
      hashes = known->blocks;
    } else if (arena.record().complete && known) {
      zero_blocks = known->Zeros();
    }
    std::span<const uint8_t> zeros = zero_blocks;
    for (const auto& range : shard->ranges) {
      store::DeviceRange described;
      described.gpu = static_cast<uint32_t>(out.gpus.size());
      described.address = range.va;
      described.size_bytes = range.size_bytes;
      described.pid = shard->key.process.pid.value;
      const size_t hashed = hashes.empty() ? 0 : BlockCount(range);
      const size_t looked_at = zeros.empty() ? 0 : BlockCount(range);
      sources.push_back({std::move(described), BytesOf(mapping, range), hashes.first(hashed),
                         zeros.first(looked_at)});
      hashes = hashes.subspan(hashed);
      zeros = zeros.subspan(looked_at);
    }
    out.gpus.push_back(shard->key.gpu);
    mappings.push_back(std::move(mapping));
  }
  auto written = store::WriteBlocks(writer, names, std::move(sources), options);
  if (!written) return Fail(InTime(Fail(std::move(written).error())).error());
  out.blocks = std::move(*written);
  return out;
}

Result<std::vector<GpuShard>> ShardsIn(const store::Manifest& manifest,
                                       const std::function<process::ProcessId(pid_t)>& process,
                                       uid_t owner) {
  std::vector<GpuShard> shards;
  for (const auto& range : manifest.ranges) {
    dataplane::ArenaKey key{process(range.pid), {manifest.gpus[range.gpu].uuid}};
    auto shard =
        std::find_if(shards.begin(), shards.end(), [&](const GpuShard& l) { return l.key == key; });
    if (shard == shards.end()) {
      shards.emplace_back();
      shard = shards.end() - 1;
      shard->key = key;
      shard->owner = owner;
    }
    shard->ranges.push_back({range.address, range.size_bytes, 0, 0});
    shard->places.push_back(static_cast<size_t>(&range - manifest.ranges.data()));
  }
  for (GpuShard& shard : shards) STASIS_TRY(dataplane::LayOut(shard.ranges));
  return shards;
}

namespace {

// Tracks the contiguous filled part of an arena. Several threads fill it, slightly out of order.
struct Filled {
  std::map<uint64_t, uint64_t> islands;  // begin -> end, of filled parts beyond a gap
  uint64_t bytes = 0;

  void Add(uint64_t begin, uint64_t end) {
    islands[begin] = end;
    while (!islands.empty() && islands.begin()->first == bytes) {
      bytes = islands.begin()->second;
      islands.erase(islands.begin());
    }
  }
};

}  // namespace

Status ReadShards(const store::RangeSource& source, const std::vector<GpuShard*>& shards,
                  const std::function<bool(uint64_t)>& progress,
                  const std::function<void()>& filled_more) {
  // Select the ranges in the order of the arenas, which are filled from their beginning.
  std::vector<size_t> ranges;
  std::vector<dataplane::Mapping> mappings;
  std::vector<store::RangeOutput> outputs;
  struct Target {
    size_t shard;
    uint64_t arena_offset;
  };
  std::vector<Target> targets;  // of each output
  for (size_t l = 0; l < shards.size(); ++l) {
    const GpuShard& shard = *shards[l];
    if (shard.ranges.empty()) continue;
    STASIS_ASSIGN(auto mapping,
                  dataplane::Mapping::Map(shard.arena->fd(), shard.arena->capacity_bytes()));
    for (size_t r = 0; r < shard.ranges.size(); ++r) {
      const dataplane::Range& range = shard.ranges[r];
      ranges.push_back(shard.places[r]);
      outputs.push_back({mapping.data() + range.arena_offset});
      const auto earlier = shard.ahead.find(range.arena_offset);
      if (earlier != shard.ahead.end() && earlier->second.range == range) {
        outputs.back().earlier_range = earlier->second.index;
      }
      targets.push_back({l, range.arena_offset});
    }
    mappings.push_back(std::move(mapping));
  }
  const uint64_t chunk = dataplane::ChunkBytes();
  std::mutex mutex;  // guards `done`, `filled` and the shards
  uint64_t done = 0;
  std::vector<Filled> filled(shards.size());
  auto placed = [&](const store::UnitJobs::Place& place, uint64_t bytes) -> Status {
    std::lock_guard lock(mutex);
    done += bytes;
    if (!progress(done)) return Fail(Code::kCancelled, "cancelled");
    const Target& target = targets[place.output];
    GpuShard& shard = *shards[target.shard];
    Filled& now = filled[target.shard];
    const uint64_t before = now.bytes;
    const uint64_t begin = target.arena_offset + place.at;
    now.Add(begin, begin + bytes);
    if (!shard.filled) return {};
    *shard.filled = now.bytes;
    if (before / chunk != now.bytes / chunk || now.bytes == shard.bytes()) filled_more();
    return {};
  };
  const auto go_on = [&] {
    std::lock_guard lock(mutex);
    return progress(done);
  };
  return InTime(source.Read(ranges, outputs, placed, go_on));
}

}  // namespace stasis::checkpoint
