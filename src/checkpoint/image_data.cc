#include "checkpoint/image_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <span>

#include "base/parallel.h"
#include "dataplane/prefault.h"
#include "image/block_name.h"
#include "image/block_reader.h"
#include "image/secret.h"

namespace stasis::checkpoint {
namespace {

using gpu_state::Lot;

// Where a range's bytes are in its arena's mapping.
std::string_view BytesOf(const dataplane::Mapping& mapping, const dataplane::Range& range) {
  return {mapping.data() + range.arena_offset, range.size_bytes};
}

Status Cancelled() { return Fail(Code::kDeadlineExceeded, "it took too long"); }

// The only one who cancels is the phase's deadline.
Status InTime(Status status) {
  return !status && status.error().code == Code::kCancelled ? Cancelled() : status;
}

}  // namespace

Result<WrittenData> WriteLots(const Paths& paths, image::ImageWriter& writer,
                              const std::vector<Lot*>& lots, store::BlockWriterOptions options,
                              const std::function<bool(uint64_t)>& progress) {
  WrittenData out;
  STASIS_ASSIGN(image::BlockSecret secret, image::BlockSecretOf(paths));
  image::BlockKey key(secret);
  const image::Id128 key_id = key.id();
  options.progress = progress;
  STASIS_ASSIGN(auto blocks, store::BlockWriter::Begin(writer, std::move(key), std::move(options)));
  std::vector<dataplane::Mapping> mappings;    // the blocks are written from there, until Finish
  std::vector<std::vector<uint8_t>> zeros_of;  // each lot's
  std::vector<store::BlockSource> sources;
  for (const Lot* lot : lots) {
    if (lot->ranges.empty()) continue;
    const auto& arena = *lot->arena;
    if (arena.record().has_checksum) {
      STASIS_ASSIGN(auto found, dataplane::DataChecksum(arena.fd(), arena.record().data_bytes));
      if (found != arena.record().checksum) {
        return Fail(Code::kDataLoss, fmt::format("{} is not what was saved there", arena.path()));
      }
    }
    STASIS_ASSIGN(auto mapping, dataplane::Mapping::Map(arena.fd(), arena.capacity_bytes()));
    // Names of another key are computed anew. What is zero is so by any key, and is nowhere else
    // said: older data may lie in its place.
    std::span<const image::Id128> names;
    std::vector<uint8_t>& zero_blocks = zeros_of.emplace_back();
    const auto& known = arena.record().names;
    if (arena.record().complete && known) {
      if (known->key == key_id) {
        names = known->blocks;
      } else {
        zero_blocks = known->Zeros();
      }
    }
    std::span<const uint8_t> zeros = zero_blocks;
    for (const auto& range : lot->ranges) {
      image::DeviceRange described;
      described.gpu = static_cast<uint32_t>(out.gpus.size());
      described.address = range.va;
      described.size_bytes = range.size_bytes;
      described.pid = lot->key.process.pid.value;
      const size_t named = names.empty() ? 0 : BlockCount(range);
      const size_t looked_at = zeros.empty() ? 0 : BlockCount(range);
      sources.push_back({std::move(described), BytesOf(mapping, range), names.first(named),
                         zeros.first(looked_at)});
      names = names.subspan(named);
      zeros = zeros.subspan(looked_at);
    }
    out.gpus.push_back(lot->key.gpu);
    mappings.push_back(std::move(mapping));
  }
  STASIS_TRY(InTime(blocks.Add(std::move(sources))));
  auto written = blocks.Finish();
  if (!written) return Fail(InTime(Fail(std::move(written).error())).error());
  out.blocks = std::move(*written);
  return out;
}

Result<std::vector<Lot>> LotsIn(const image::Manifest& manifest,
                                const std::function<process::ProcessId(pid_t)>& process,
                                uid_t owner) {
  std::vector<Lot> lots;
  for (const auto& range : manifest.ranges) {
    dataplane::ArenaKey key{process(range.pid), {manifest.gpus[range.gpu].uuid}};
    auto lot = std::find_if(lots.begin(), lots.end(), [&](const Lot& l) { return l.key == key; });
    if (lot == lots.end()) {
      lots.emplace_back();
      lot = lots.end() - 1;
      lot->key = key;
      lot->owner = owner;
    }
    lot->ranges.push_back({range.address, range.size_bytes, 0, 0});
    lot->places.push_back(static_cast<size_t>(&range - manifest.ranges.data()));
  }
  for (Lot& lot : lots) STASIS_TRY(dataplane::LayOut(lot.ranges));
  return lots;
}

namespace {

// One block of a lot, on its way from the image to the arena.
struct BlockToRead {
  size_t lot;
  const image::DeviceRange* range;
  size_t index;
  uint64_t arena_offset;
  uint64_t bytes;
};

// What has been read of one lot: several threads read, a little out of order.
struct LotSoFar {
  dataplane::Mapping mapping;
  std::map<uint64_t, uint64_t> islands;  // begin -> end, of what lies behind a gap
  uint64_t filled = 0;
};

}  // namespace

Status ReadLots(const image::ImageReader& reader, const std::vector<Lot*>& lots,
                const std::function<bool(uint64_t)>& progress,
                const std::function<void()>& filled_more) {
  STASIS_ASSIGN(auto blocks, image::BlockReader::Open(reader));
  std::vector<BlockToRead> all;
  std::vector<LotSoFar> so_far(lots.size());
  for (size_t l = 0; l < lots.size(); ++l) {
    const Lot& lot = *lots[l];
    if (lot.ranges.empty()) continue;
    STASIS_ASSIGN(so_far[l].mapping,
                  dataplane::Mapping::Map(lot.arena->fd(), lot.arena->capacity_bytes()));
    for (size_t r = 0; r < lot.ranges.size(); ++r) {
      const auto& range = reader.manifest().ranges[lot.places[r]];
      for (size_t i = 0; i < range.blocks.size(); ++i) {
        all.push_back({l, &range, i, lot.ranges[r].arena_offset + i * uint64_t{range.block_bytes},
                       image::BlockReader::BlockBytes(range, i)});
      }
    }
  }
  const uint64_t chunk = dataplane::ChunkBytes();
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards all below, and so_far but for the mappings
  Status failed;
  uint64_t done = 0;
  auto note = [&](const BlockToRead& block, Status read) {
    std::lock_guard lock(mutex);
    if (read) done += block.bytes;
    if (read && !stop && !progress(done)) read = Cancelled();
    if (!read) {
      if (failed) failed = std::move(read);
      stop = true;
      return;
    }
    LotSoFar& lot = so_far[block.lot];
    lot.islands[block.arena_offset] = block.arena_offset + block.bytes;
    const uint64_t before = lot.filled;
    while (!lot.islands.empty() && lot.islands.begin()->first == lot.filled) {
      lot.filled = lot.islands.begin()->second;
      lot.islands.erase(lot.islands.begin());
    }
    if (!lots[block.lot]->filled) return;
    *lots[block.lot]->filled = lot.filled;
    if (before / chunk != lot.filled / chunk || lot.filled == lots[block.lot]->bytes()) {
      filled_more();
    }
  };
  ForEachIndex(all.size(), ProcessorCount(), [&](size_t i) {
    if (stop) return;
    const BlockToRead& block = all[i];
    note(block, blocks.Read(*block.range, block.index,
                            so_far[block.lot].mapping.data() + block.arena_offset));
  });
  return failed;
}

}  // namespace stasis::checkpoint
