#include "gpu_state/gpu_load.h"

#include <algorithm>
#include <utility>

namespace stasis::gpu_state {
namespace {

using plan::PhaseScope;

// Maximum size of one part of a copy, which takes 20 ms on PCIe. The ballast can be freed only
// between two parts.
constexpr uint64_t kMostInOnePart = 1u << 30;

}  // namespace

uint64_t GpuLoad::BallastFor(size_t index) const {
  uint64_t bytes = driver_bytes_;
  for (size_t i = index + 1; i < shards_.size(); ++i) bytes += shards_[i]->bytes();
  return bytes;
}

Status GpuLoad::MakeRoom(uint64_t driver_bytes, const Deadline& deadline) {
  driver_bytes_ = driver_bytes;
  STASIS_TRY(Prepare(*shards_.front(), BallastFor(0), deadline));
  std::lock_guard lock(mutex_);
  free_ = false;
  return {};
}

// Called by the loading thread between two parts of a copy.
Status GpuLoad::FreeIfWanted(PhaseScope* scope, const Deadline& deadline) {
  {
    std::lock_guard lock(mutex_);
    if (!wanted_ || free_) return {};
  }
  STASIS_TRY(mover_.FreeBallast(deadline));
  {
    std::lock_guard lock(mutex_);
    free_ = true;
  }
  scope->Changed();
  return {};
}

// Waits until at least one chunk, or the rest if it is smaller, can be loaded. Smaller copies would
// be slower.
Result<uint64_t> GpuLoad::AwaitFilled(const GpuShard& shard, uint64_t loaded, PhaseScope* scope,
                                      const Deadline& deadline) {
  const uint64_t all = shard.bytes();
  const uint64_t enough = std::min(all, loaded + dataplane::ChunkBytes());
  for (;;) {
    if (scope != nullptr) {
      STASIS_TRY(FreeIfWanted(scope, deadline));
      if (scope->Abandoned()) return Fail(plan::StoppedByOther());
    }
    const uint64_t filled = shard.filled ? shard.filled->load() : all;
    if (filled >= enough) {
      std::lock_guard lock(mutex_);
      return free_ ? filled : std::min(filled, loaded + kMostInOnePart);
    }
    if (scope == nullptr) return Fail(Code::kInternal, "no phase fills the arena");
    STASIS_TRY(scope->WaitUntil([&] {
      std::lock_guard lock(mutex_);
      return shard.filled->load() >= enough || (wanted_ && !free_);
    }));
  }
}

Status GpuLoad::LoadShard(size_t index, PhaseScope* scope, const Deadline& deadline,
                          const std::function<void(uint64_t)>& loaded) {
  GpuShard& shard = *shards_[index];
  if (index > 0) {
    bool was_free = false;
    {
      std::lock_guard lock(mutex_);
      was_free = free_ || wanted_;
    }
    // This process's descriptors now hold the memory of the previous shard. The mover's release
    // also frees the ballast; PrepareLoad allocates a new one.
    STASIS_TRY(mover_.Release(deadline));
    STASIS_TRY(Prepare(shard, was_free ? 0 : BallastFor(index), deadline));
    if (was_free) {
      std::lock_guard lock(mutex_);
      free_ = true;
    }
    if (was_free && scope != nullptr) scope->Changed();
  }
  STASIS_TRY(shard.source ? LoadFromSource(shard, scope, deadline, loaded)
                          : LoadFromArena(shard, scope, deadline, loaded));
  STASIS_ASSIGN(shard.memory, mover_.Export(deadline));
  return {};
}

Status GpuLoad::Prepare(GpuShard& shard, uint64_t ballast_bytes, const Deadline& deadline) {
  if (!shard.source) {
    STASIS_TRY(mover_.Attach(*shard.arena, deadline));
    return mover_.PrepareLoad(shard.ranges, ballast_bytes, deadline);
  }
  STASIS_TRY(mover_.AttachRing(shard.bytes(), most_ring_bytes_, deadline));
  std::vector<dataplane::Range> ranges = shard.ranges;
  for (dataplane::Range& range : ranges) range.arena_offset = range.stored_bytes = 0;
  return mover_.PrepareLoad(ranges, ballast_bytes, deadline);
}

Status GpuLoad::LoadFromSource(GpuShard& shard, PhaseScope* scope, const Deadline& deadline,
                               const std::function<void(uint64_t)>& loaded) {
  return mover_.LoadFrom(
      *shard.source,
      [&](uint64_t done) -> Status {
        loaded(done);
        if (scope == nullptr) return {};
        STASIS_TRY(FreeIfWanted(scope, deadline));
        return scope->Abandoned() ? Fail(plan::StoppedByOther()) : Status();
      },
      deadline);
}

Status GpuLoad::LoadFromArena(GpuShard& shard, PhaseScope* scope, const Deadline& deadline,
                              const std::function<void(uint64_t)>& loaded) {
  dataplane::CopyOptions copy;
  // Blocks that come from an image (`filled`) need no checksum here: they were checked when they
  // were read. Nor must their arena's record be read, because data-bind writes it meanwhile.
  if (!shard.filled) {
    const auto& record = shard.arena->record();
    if (record.has_checksum) copy.expected = record.checksum;
    if (record.hashes) copy.zero = record.hashes->Zeros();
  }
  copy.progress = [&](uint64_t done, uint64_t) { loaded(done); };
  copy.filled = [&](uint64_t done) { return AwaitFilled(shard, done, scope, deadline); };
  STASIS_ASSIGN(const auto result, mover_.Load(copy, deadline));
  cold_bytes_ += result.cold_bytes;
  return {};
}

Status GpuLoad::Load(PhaseScope* scope, const Deadline& deadline,
                     const std::function<void(uint64_t)>& loaded) {
  STASIS_TRY(AcquireMover(scope));
  auto load = [&]() -> Status {
    uint64_t before = 0;
    for (size_t i = 0; i < shards_.size(); ++i) {
      STASIS_TRY(LoadShard(i, scope, deadline, [&](uint64_t done) { loaded(before + done); }));
      before += shards_[i]->bytes();
    }
    return {};
  };
  Status done = load();
  bool keeps_ballast = false;
  {
    std::lock_guard lock(mutex_);
    // This process's descriptors keep the memory. The only memory of the mover that is still needed
    // is the ballast.
    loaded_ = done.has_value();
    keeps_ballast = loaded_ && !free_ && !wanted_;
    if (keeps_ballast) busy_ = false;
  }
  Status released;
  if (!keeps_ballast) released = ReleaseMover(deadline);
  if (scope != nullptr) scope->Changed();
  return done ? std::move(released) : std::move(done);
}

// Reserves the mover until ReleaseMover(), or until busy_ is reset.
Status GpuLoad::AcquireMover(PhaseScope* scope) {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (!busy_) {
        busy_ = true;
        return {};
      }
    }
    if (scope == nullptr) return Fail(Code::kInternal, "the mover is busy");
    STASIS_TRY(scope->WaitUntil([this] { return !busy(); }));
  }
}

bool GpuLoad::busy() {
  std::lock_guard lock(mutex_);
  return busy_;
}

Status GpuLoad::ReleaseMover(const Deadline& deadline) {
  Status released = mover_.Release(deadline);
  std::lock_guard lock(mutex_);
  free_ = true;
  busy_ = false;
  return released;
}

Status GpuLoad::FreeBallast(PhaseScope* scope, const Deadline& deadline) {
  for (;;) {
    bool by_loader = false;
    {
      std::lock_guard lock(mutex_);
      if (free_) return {};
      wanted_ = true;
      by_loader = std::exchange(busy_, true);
    }
    if (!by_loader) break;
    if (scope == nullptr) return Fail(Code::kInternal, "the mover is busy");
    scope->Changed();
    STASIS_TRY(scope->WaitUntil([this] {
      std::lock_guard lock(mutex_);
      return free_ || !busy_;
    }));
  }
  Status freed = loaded_ ? mover_.Release(deadline) : mover_.FreeBallast(deadline);
  {
    std::lock_guard lock(mutex_);
    free_ = freed.has_value();
    busy_ = false;
  }
  if (scope != nullptr) scope->Changed();
  return freed;
}

}  // namespace stasis::gpu_state
