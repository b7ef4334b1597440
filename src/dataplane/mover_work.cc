#include "dataplane/mover_work.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "base/deadline.h"
#include "base/file.h"
#include "dataplane/arena.h"
#include "dataplane/changed_blocks.h"

namespace stasis::dataplane {
namespace {

using wire::Op;
using wire::Reply;
using wire::Request;

constexpr int kMeasureRounds = 5;
constexpr uint64_t kMeasurePiece = 1u << 30;

std::string Mib(uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

tl::unexpected<Error> WrongOrder(const Request& request) {
  return Fail(Code::kFailedPrecondition,
              std::string("the mover was asked to ") + OpName(request.op) + " at the wrong time");
}

uint64_t BytesPerSecond(uint64_t bytes, uint64_t ns) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(ns));
}

}  // namespace

Status MoverWork::Start() {
  if (gpu_) return {};
  STASIS_ASSIGN(gpu_, Gpu::Open(options_.library, device::GpuUuid{options_.gpu}));
  arena_ = std::make_unique<AttachedArena>(*gpu_, removals_);
  copier_ = std::make_unique<Copier>(*gpu_);
  hasher_ = std::make_unique<BlockHasher>(*gpu_);
  ring_copier_ = std::make_unique<RingCopier>(*gpu_);
  return {};
}

Status MoverWork::Expect(Phase phase, const Request& request) const {
  if (phase_ != phase) return WrongOrder(request);
  return {};
}

Status MoverWork::ExpectArena() const {
  if (!arena_->attached()) return Fail(Code::kFailedPrecondition, "the mover has no arena");
  return {};
}

Status MoverWork::Do(const Request& request, std::vector<UniqueFd> fds, Reply& reply,
                     std::vector<UniqueFd>& out, const Progress& progress) {
  const bool stayed = gpu_.has_value();
  STASIS_TRY(Start());
  switch (request.op) {
    case Op::kHello:
      // An error here ends this mover, and the client starts another one (gpu.h, IsHarmless).
      if (stayed) STASIS_TRY(gpu_->CheckConnection());
      return Hello(reply);
    case Op::kAttach:
      STASIS_TRY(Expect(Phase::kIdle, request));
      return arena_->Attach(std::move(fds[0]), request.bytes);
    case Op::kDetach:
      STASIS_TRY(Expect(Phase::kIdle, request));
      return Detach();
    case Op::kWarm:
      STASIS_TRY(ExpectArena());
      STASIS_TRY(Warm(request.bytes));
      reply.staged = arena_->staged();
      return {};
    case Op::kMeasure:
      STASIS_TRY(Expect(Phase::kIdle, request));
      STASIS_TRY(ExpectArena());
      return Measure(request.bytes, reply);
    case Op::kBeginSave:
      return Begin(Phase::kSaving, request, reply);
    case Op::kBeginLoad:
      return Begin(Phase::kLoading, request, reply);
    case Op::kImport:
      STASIS_TRY(Expect(Phase::kSaving, request));
      return Append(request, fds);
    case Op::kCreate:
      STASIS_TRY(Expect(Phase::kLoading, request));
      return Append(request, fds);
    case Op::kSave:
      STASIS_TRY(Expect(Phase::kSaving, request));
      return Save(request, fds, reply, progress);
    case Op::kLoad:
      STASIS_TRY(Expect(Phase::kLoading, request));
      return Load(request, fds, reply, progress);
    case Op::kLoadParts:
      STASIS_TRY(Expect(Phase::kLoading, request));
      return LoadParts(request);
    case Op::kHash:
      STASIS_TRY(Expect(Phase::kLoading, request));
      return HashLoaded(request, fds[0].get(), reply);
    case Op::kFreeBallast:
      STASIS_TRY(Expect(Phase::kLoading, request));
      return memory_->FreeBallast();
    case Op::kExport:
      STASIS_TRY(Expect(Phase::kLoading, request));
      if (uint64_t{request.first} + request.count > memory_->count()) return WrongOrder(request);
      for (uint32_t i = 0; i < request.count; ++i) {
        STASIS_ASSIGN(UniqueFd fd, memory_->Export(request.first + i));
        out.push_back(std::move(fd));
      }
      return {};
    case Op::kRelease:
      return Release();
    case Op::kEnd:
      STASIS_TRY(Expect(Phase::kIdle, request));
      STASIS_TRY(End());
      return ForgetRemoved();
    case Op::kPrepareHashes:
      return PrepareHashes(request, reply);
    case Op::kMeasureHashing:
      STASIS_TRY(Expect(Phase::kIdle, request));
      return MeasureHashing(request.bytes, reply);
  }
  return WrongOrder(request);
}

Status MoverWork::Detach() {
  if (phase_ != Phase::kIdle) return Fail(Code::kFailedPrecondition, "the mover is busy");
  if (arena_) arena_->Detach();
  return {};
}

Status MoverWork::End() {
  STASIS_TRY(Release());
  STASIS_TRY(Detach());
  return hasher_ ? hasher_->Forget() : Status{};
}

Status MoverWork::ForgetRemoved() {
  if (phase_ != Phase::kIdle) return Fail(Code::kFailedPrecondition, "the mover is busy");
  if (arena_) arena_->ForgetRemoved();
  return {};
}

Status MoverWork::Hello(Reply& reply) {
  STASIS_ASSIGN(Gpu::Memory memory, gpu_->ReadMemory());
  reply.bytes = gpu_->context_bytes();
  reply.second = memory.free_bytes;
  reply.third = memory.total_bytes;
  return {};
}

Status MoverWork::Warm(uint64_t bytes) {
  std::vector<uint64_t> chunks;
  for (uint64_t at = 0; at < std::min(bytes, arena_->bytes()); at += arena_->chunk_bytes()) {
    chunks.push_back(at / arena_->chunk_bytes());
  }
  AttachedArena::Preparation preparation(*arena_, chunks);
  for (size_t i = 0; i < chunks.size(); ++i) STASIS_TRY(preparation.Ready(i));
  return {};
}

// Copies to the GPU first and back from there, so that the arena's bytes stay unchanged.
Status MoverWork::Measure(uint64_t bytes, Reply& reply) {
  bytes = std::min(bytes, arena_->bytes()) / gpu_->granularity() * gpu_->granularity();
  if (bytes == 0) return Fail(Code::kInvalidArgument, "the size to measure is too small");
  STASIS_TRY(Warm(bytes));
  DeviceMemory memory(*gpu_);
  STASIS_TRY(memory.Reserve(bytes));
  STASIS_TRY(memory.Create(bytes));
  STASIS_TRY(memory.Open());
  uint64_t best[2] = {~0ull, ~0ull};
  for (int round = 0; round < kMeasureRounds; ++round) {
    for (Direction direction : {Direction::kToDevice, Direction::kToArena}) {
      STASIS_ASSIGN(
          CopyReport report,
          copier_->Copy(direction, *arena_, memory.base(),
                        Cut({{0, bytes, 0, bytes}}, arena_->chunk_bytes()), [](uint64_t) {}));
      uint64_t& entry = best[direction == Direction::kToDevice];
      entry = std::min(entry, std::max<uint64_t>(report.elapsed_ns, 1));
    }
  }
  reply.bytes = bytes;
  reply.second = BytesPerSecond(bytes, best[0]);
  reply.third = BytesPerSecond(bytes, best[1]);
  reply.staged = arena_->staged();
  return memory.Free();
}

Status MoverWork::Begin(Phase phase, const Request& request, Reply& reply) {
  const Stopwatch watch;
  STASIS_TRY(Expect(Phase::kIdle, request));
  STASIS_TRY(ExpectArena());
  if (request.count == 0 || request.bytes == 0) {
    return Fail(Code::kInvalidArgument, "there is nothing to save or load");
  }
  if (phase == Phase::kLoading) {
    STASIS_ASSIGN(Gpu::Memory now, gpu_->ReadMemory());
    const uint64_t needed = request.bytes + RoundUp(request.ballast_bytes, gpu_->granularity());
    reply.bytes = needed;
    reply.second = now.free_bytes;
    if (needed > now.free_bytes) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("{} needs {} of GPU memory, but only {} is free", options_.gpu,
                              Mib(needed), Mib(now.free_bytes)),
                  "free memory on this GPU, or choose another one with --gpu-map");
    }
  }
  auto memory = std::make_unique<DeviceMemory>(*gpu_);
  STASIS_TRY(memory->Reserve(request.bytes));
  if (phase == Phase::kLoading) STASIS_TRY(memory->CreateBallast(request.ballast_bytes));
  memory_ = std::move(memory);
  ranges_.clear();
  skip_.clear();
  ranges_bytes_ = loaded_bytes_ = 0;
  is_open_ = false;
  expected_count_ = request.count;
  phase_ = phase;
  watch_ = watch;
  return {};
}

Status MoverWork::Append(const Request& request, const std::vector<UniqueFd>& fds) {
  if (request.first != ranges_.size() || ranges_.size() + request.count > expected_count_) {
    return WrongOrder(request);
  }
  assert(phase_ != Phase::kSaving || fds.size() == request.count);  // checked by WhyInvalid()
  std::vector<Range> batch;
  for (uint32_t i = 0; i < request.count; ++i) {
    const wire::WireRange& r = request.ranges[i];
    batch.push_back({0, r.size_bytes, r.arena_offset, r.stored_bytes});
    if (phase_ == Phase::kSaving && r.stored_bytes != r.size_bytes) {
      return Fail(Code::kInvalidArgument, "a save must store every byte of each range");
    }
  }
  STASIS_TRY(CheckWithin(batch, arena_->bytes()));
  for (uint32_t i = 0; i < request.count; ++i) {
    Status added = phase_ == Phase::kSaving ? memory_->Import(fds[i].get(), batch[i].size_bytes)
                                            : memory_->Create(batch[i].size_bytes);
    if (!added) {
      added.error().WithContext(fmt::format("allocation {}", request.first + i));
      return added;
    }
    ranges_.push_back(batch[i]);
    ranges_bytes_ += batch[i].size_bytes;
  }
  return {};
}

void MoverWork::FillReply(const CopyReport& report, Reply& reply) {
  reply.bytes = report.copied_bytes;
  reply.second = report.cleared_bytes;
  reply.third = report.cold_bytes;
  reply.elapsed_ns = report.elapsed_ns;
  reply.staged = report.staged;
}

Status MoverWork::Save(const Request& request, const std::vector<UniqueFd>& fds, Reply& reply,
                       const Progress& progress) {
  if (ranges_.size() != expected_count_) return WrongOrder(request);
  STASIS_TRY(memory_->Open());
  const double before_s = watch_.Seconds();
  CopyReport report;
  if ((request.flags & wire::kFlagHashes) != 0) {
    STASIS_ASSIGN(report, SaveChanged(fds[0].get(), reply, progress));
  } else {
    STASIS_ASSIGN(report, copier_->Copy(Direction::kToArena, *arena_, memory_->base(),
                                        Cut(ranges_, arena_->chunk_bytes()), progress));
  }
  FillReply(report, reply);
  reply.until_first_ns = static_cast<uint64_t>(before_s * 1e9) + report.until_first_ns;
  if ((request.flags & wire::kFlagChecksum) != 0) {
    STASIS_ASSIGN(Id128 found, DataChecksum(arena_->fd(), UsedBytes(ranges_)));
    std::memcpy(reply.checksum, found.bytes.data(), found.bytes.size());
  }
  return {};
}

Result<CopyReport> MoverWork::SaveChanged(int file, Reply& reply, const Progress& progress) {
  std::vector<Id128> known(BlockCount(ranges_));
  STASIS_TRY(PreadAll(file, known.data(), known.size() * sizeof known[0], 0));
  ChangedBlocks changed(*hasher_, ranges_, std::move(known), arena_->chunk_bytes());
  auto copy = [&]() -> Result<CopyReport> {
    STASIS_TRY(changed.Begin(memory_->base()));
    return copier_->Save(
        *arena_, memory_->base(), [&] { return changed.Next(); }, progress);
  };
  auto report = copy();
  // Even after an error, the GPU must not read memory that is about to be freed.
  Status ended = changed.End();
  if (!report) return report;
  STASIS_TRY(std::move(ended));
  report->cleared_bytes = changed.left_out_bytes();
  reply.zero_bytes = changed.zero_bytes();
  reply.hashing_ns = hasher_->elapsed_ns();
  if (::lseek(file, 0, SEEK_SET) != 0) return FailErrno(errno, "seek in the file of hashes");
  STASIS_TRY(WriteAll(file, {reinterpret_cast<const char*>(changed.hashes().data()),
                             changed.hashes().size() * sizeof(Id128)}));
  return report;
}

Status MoverWork::Load(const Request& request, const std::vector<UniqueFd>& fds, Reply& reply,
                       const Progress& progress) {
  if (ranges_.size() != expected_count_) return WrongOrder(request);
  if ((request.flags & wire::kFlagSkip) != 0) {
    skip_.resize(BlockCount(ranges_));
    STASIS_TRY(PreadAll(fds[0].get(), skip_.data(), skip_.size(), 0));
  }
  ArenaWindow window;
  if (request.bytes != 0) {
    window = {loaded_bytes_, request.bytes};
    if (window.begin >= window.end) return WrongOrder(request);
  }
  const uint64_t used = UsedBytes(ranges_);
  if ((request.flags & wire::kFlagChecksum) != 0) {
    STASIS_ASSIGN(Id128 found, DataChecksum(arena_->fd(), used));
    if (found != Id128::FromRaw(request.checksum)) {
      return Fail(Code::kDataLoss, "the GPU data in the arena has changed since it was saved");
    }
  }
  if (window.begin == 0) STASIS_TRY(memory_->Open());
  STASIS_ASSIGN(
      CopyReport report,
      copier_->Copy(Direction::kToDevice, *arena_, memory_->base(),
                    Within(Cut(ranges_, arena_->chunk_bytes(), skip_), window), progress));
  loaded_bytes_ = std::min(window.end, used);
  FillReply(report, reply);
  return {};
}

Status MoverWork::OpenLoaded(const Request& request) {
  if (ranges_.size() != expected_count_) return WrongOrder(request);
  if (!is_open_) STASIS_TRY(memory_->Open());
  is_open_ = true;
  return {};
}

Status MoverWork::LoadParts(const Request& request) {
  STASIS_TRY(OpenLoaded(request));
  std::vector<LoadPart> parts;
  for (uint32_t i = 0; i < request.count; ++i) {
    const wire::WireRange& r = request.ranges[i];
    const bool zero = r.arena_offset == wire::kZeros;
    const bool in_memory =
        r.device_offset <= ranges_bytes_ && r.size_bytes <= ranges_bytes_ - r.device_offset;
    const bool in_arena =
        r.arena_offset <= arena_->bytes() && r.size_bytes <= arena_->bytes() - r.arena_offset;
    if (r.size_bytes == 0 || !in_memory || !(zero || in_arena)) {
      return Fail(Code::kInvalidArgument, fmt::format("part {} lies outside of the memory", i));
    }
    parts.push_back({r.device_offset, r.size_bytes, r.arena_offset, zero});
  }
  return ring_copier_->Copy(arena_->data(), memory_->base(), parts);
}

Status MoverWork::HashLoaded(const Request& request, int file, Reply& reply) {
  STASIS_TRY(OpenLoaded(request));
  STASIS_TRY(ring_copier_->Wait());
  STASIS_ASSIGN(const BlockHashes found, hasher_->Hash(memory_->base(), ranges_));
  reply.elapsed_ns = found.elapsed_ns;
  return WriteAll(file, {reinterpret_cast<const char*>(found.hashes.data()),
                         found.hashes.size() * sizeof(Id128)});
}

Status MoverWork::PrepareHashes(const Request& request, Reply& reply) {
  BlockSecret secret;
  std::memcpy(secret.data(), request.secret, secret.size());
  const Stopwatch watch;
  STASIS_TRY(hasher_->Prepare(BlockKey(secret)));
  reply.elapsed_ns = static_cast<uint64_t>(watch.Seconds() * 1e9);
  return {};
}

Status MoverWork::MeasureHashing(uint64_t bytes, Reply& reply) {
  bytes = bytes / gpu_->granularity() * gpu_->granularity();
  if (bytes == 0) return Fail(Code::kInvalidArgument, "the size to measure is too small");
  DeviceMemory memory(*gpu_);
  STASIS_TRY(memory.Reserve(bytes));
  for (uint64_t left = bytes; left > 0;) {
    const uint64_t piece = std::min(left, RoundUp(kMeasurePiece, gpu_->granularity()));
    STASIS_TRY(memory.Create(piece));
    left -= piece;
  }
  STASIS_TRY(memory.Open());
  STASIS_TRY(hasher_->Fill(memory.base(), bytes));
  uint64_t best = ~0ull;
  for (int round = 0; round < kMeasureRounds; ++round) {
    STASIS_ASSIGN(BlockHashes found, hasher_->Hash(memory.base(), {{0, bytes, 0, bytes}}));
    STASIS_TRY(hasher_->Check(memory.base(), bytes, found.hashes));
    best = std::min(best, std::max<uint64_t>(found.elapsed_ns, 1));
  }
  reply.bytes = bytes;
  reply.second = BytesPerSecond(bytes, best);
  return memory.Free();
}

Status MoverWork::Release() {
  phase_ = Phase::kIdle;
  ranges_.clear();
  skip_.clear();
  auto memory = std::move(memory_);
  // No copy may be in flight when its memory is freed. After an error of the driver Free fails too.
  if (memory != nullptr) (void)ring_copier_->Wait();
  return memory == nullptr ? Status{} : memory->Free();
}

}  // namespace stasis::dataplane
