#include "dataplane/mover_client.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/file.h"

namespace stasis::dataplane {
namespace {

using wire::Make;
using wire::Op;
using wire::Reply;
using wire::Request;

// Creates a file in memory with these values.
template <class T>
Result<UniqueFd> MemoryFile(const char* name, const std::vector<T>& values) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return FailErrno(errno, "make a file in memory");
  STASIS_TRY(WriteAll(file.get(),
                      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
  return file;
}

}  // namespace

Mover::Mover(MoverOptions options) : process_(std::move(options)) {}

Mover::~Mover() { (void)Stop(); }

Status Mover::Stop() { return process_.Stop(); }

Result<MoverInfo> Mover::Start(const Deadline& deadline) {
  STASIS_ASSIGN(Reply reply, process_.CallOrStart(Make(Op::kHello), {}, deadline));
  return MoverInfo{reply.bytes, reply.second, reply.third, !process_.resident()};
}

Status Mover::Attach(const Arena& arena, const Deadline& deadline) {
  ring_ = {};
  Request request = Make(Op::kAttach);
  request.bytes = arena.capacity_bytes();
  const int fd = arena.fd();
  STASIS_TRY(process_.CallOrStart(request, {&fd, 1}, deadline));
  return {};
}

Status Mover::Detach(const Deadline& deadline) {
  ring_ = {};
  STASIS_TRY(process_.Call(Make(Op::kDetach), {}, deadline));
  return {};
}

Result<bool> Mover::Warm(uint64_t bytes, const std::stop_token& stop, const Deadline& deadline) {
  Request request = Make(Op::kWarm);
  request.bytes = bytes;
  STASIS_ASSIGN(const Reply reply, process_.Call(request, {}, deadline, {}, nullptr, stop));
  return reply.staged == 0;
}

Result<WireSpeed> Mover::Measure(uint64_t bytes, const Deadline& deadline) {
  Request request = Make(Op::kMeasure);
  request.bytes = bytes;
  STASIS_ASSIGN(Reply reply, process_.Call(request, {}, deadline));
  return WireSpeed{reply.bytes, static_cast<double>(reply.second),
                   static_cast<double>(reply.third)};
}

Status Mover::PrepareHashes(const BlockSecret& secret, const Deadline& deadline) {
  Request request = Make(Op::kPrepareHashes);
  std::memcpy(request.secret, secret.data(), secret.size());
  STASIS_TRY(process_.CallOrStart(request, {}, deadline));
  return {};
}

Result<HashingSpeed> Mover::MeasureHashing(uint64_t bytes, const Deadline& deadline) {
  Request prepare = Make(Op::kPrepareHashes);
  STASIS_ASSIGN(const BlockSecret secret, BlockKey::RandomSecret());
  std::memcpy(prepare.secret, secret.data(), secret.size());
  STASIS_ASSIGN(Reply prepared, process_.CallOrStart(prepare, {}, deadline));
  Request request = Make(Op::kMeasureHashing);
  request.bytes = bytes;
  STASIS_ASSIGN(Reply reply, process_.Call(request, {}, deadline));
  return HashingSpeed{reply.bytes, static_cast<double>(reply.second),
                      static_cast<double>(prepared.elapsed_ns) / 1e9};
}

Status Mover::SendRanges(Op op, const std::vector<Range>& ranges, std::span<const int> fds,
                         const Deadline& deadline) {
  for (size_t first = 0; first < ranges.size(); first += wire::kMaxBatch) {
    Request request = Make(op);
    request.first = static_cast<uint32_t>(first);
    request.count = static_cast<uint32_t>(std::min<size_t>(wire::kMaxBatch, ranges.size() - first));
    for (uint32_t i = 0; i < request.count; ++i) {
      const Range& r = ranges[first + i];
      request.ranges[i] = {r.size_bytes, r.arena_offset, r.stored_bytes};
    }
    // Wait for each reply before the next request, because the kernel limits the descriptors in
    // flight.
    STASIS_TRY(
        process_.Call(request, fds.empty() ? fds : fds.subspan(first, request.count), deadline));
  }
  return {};
}

Result<CopyResult> Mover::Copy(const Request& request, int file, const CopyOptions& options,
                               const Deadline& deadline, uint64_t before_bytes) {
  MoverProcess::Progress progress;
  if (options.progress) {
    progress = [&](uint64_t bytes) { options.progress(before_bytes + bytes, total_bytes_); };
  }
  STASIS_ASSIGN(Reply reply,
                process_.Call(request, {&file, file < 0 ? 0u : 1u}, deadline, progress));
  CopyResult result;
  result.copied_bytes = reply.bytes;
  result.cleared_bytes = reply.second;
  result.cold_bytes = reply.third;
  result.seconds = static_cast<double>(reply.elapsed_ns) / 1e9;
  result.zero_bytes = reply.zero_bytes;
  result.until_first_s = static_cast<double>(reply.until_first_ns) / 1e9;
  result.hashing_s = static_cast<double>(reply.hashing_ns) / 1e9;
  result.staged = reply.staged != 0;
  if (request.op == Op::kSave && options.checksum) {
    result.checksum = Id128::FromRaw(reply.checksum);
  }
  return result;
}

Status Mover::CheckAllCopied(const CopyResult& result) const {
  if (result.copied_bytes + result.cleared_bytes == total_bytes_) return {};
  return Fail(Code::kInternal, "the mover did not copy the requested number of bytes");
}

Result<CopyResult> Mover::SaveImported(const std::vector<Range>& ranges, const CopyOptions& options,
                                       const Deadline& deadline) {
  Request request = Make(Op::kSave);
  if (options.checksum) request.flags |= wire::kFlagChecksum;
  UniqueFd hashes;
  if (options.hashes) {
    request.flags |= wire::kFlagHashes;
    std::vector<Id128> known = options.known;
    known.resize(BlockCount(ranges));
    STASIS_ASSIGN(hashes, MemoryFile("stasis-hashes", known));
  }
  STASIS_ASSIGN(CopyResult result, Copy(request, hashes.get(), options, deadline));
  STASIS_TRY(CheckAllCopied(result));
  if (!options.hashes) return result;
  result.hashes.resize(BlockCount(ranges));
  STASIS_TRY(PreadAll(hashes.get(), result.hashes.data(), result.hashes.size() * sizeof(Id128), 0));
  return result;
}

Result<CopyResult> Mover::Save(const std::vector<Range>& ranges, std::span<const int> fds,
                               const CopyOptions& options, const Deadline& deadline) {
  STASIS_ASSIGN(total_bytes_, TotalBytes(ranges));
  if (fds.size() != ranges.size()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the program sent {} descriptors for {} allocations", fds.size(),
                            ranges.size()));
  }
  if (ranges.empty()) return CopyResult{};
  auto save = [&]() -> Result<CopyResult> {
    Request begin = Make(Op::kBeginSave);
    begin.count = static_cast<uint32_t>(ranges.size());
    begin.bytes = total_bytes_;
    STASIS_TRY(process_.Call(begin, {}, deadline));
    STASIS_TRY(SendRanges(Op::kImport, ranges, fds, deadline));
    return SaveImported(ranges, options, deadline);
  };
  auto result = save();
  if (!result) (void)Release(Deadline::In(kReleaseLimit));
  return result;
}

Status Mover::PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                          const Deadline& deadline) {
  STASIS_ASSIGN(total_bytes_, TotalBytes(ranges));
  count_ = ranges.size();
  blocks_ = BlockCount(ranges);
  arena_bytes_ = UsedBytes(ranges);
  if (ranges.empty()) return Fail(Code::kInvalidArgument, "there is nothing to load");
  auto prepare = [&]() -> Status {
    Request begin = Make(Op::kBeginLoad);
    begin.count = static_cast<uint32_t>(ranges.size());
    begin.bytes = total_bytes_;
    begin.ballast_bytes = ballast_bytes;
    STASIS_TRY(process_.Call(begin, {}, deadline));
    return SendRanges(Op::kCreate, ranges, {}, deadline);
  };
  Status status = prepare();
  if (!status) (void)Release(Deadline::In(kReleaseLimit));
  return status;
}

Status Mover::FreeBallast(const Deadline& deadline) {
  STASIS_TRY(process_.Call(Make(Op::kFreeBallast), {}, deadline));
  return {};
}

Result<CopyResult> Mover::Load(const CopyOptions& options, const Deadline& deadline) {
  auto load = [&]() -> Result<CopyResult> {
    CopyResult all;
    uint64_t loaded = 0;
    do {
      Request part = Make(Op::kLoad);
      if (options.filled && arena_bytes_ > 0) {
        STASIS_ASSIGN(part.bytes, options.filled(loaded));
        part.bytes = std::min(part.bytes, arena_bytes_);
        if (part.bytes <= loaded) return Fail(Code::kInternal, "the load has made no progress");
      }
      UniqueFd zero;
      if (loaded == 0 && !options.zero.empty()) {
        part.flags |= wire::kFlagSkip;
        STASIS_ASSIGN(zero, MemoryFile("stasis-zero", options.zero));
      }
      if (loaded == 0 && options.expected) {
        part.flags |= wire::kFlagChecksum;
        std::memcpy(part.checksum, options.expected->bytes.data(), options.expected->bytes.size());
      }
      STASIS_ASSIGN(CopyResult one, Copy(part, zero.get(), options, deadline, all.copied_bytes));
      all.copied_bytes += one.copied_bytes;
      all.cleared_bytes += one.cleared_bytes;
      all.cold_bytes += one.cold_bytes;
      all.seconds += one.seconds;
      all.staged |= one.staged;
      loaded = part.bytes == 0 ? arena_bytes_ : part.bytes;
    } while (loaded < arena_bytes_);
    STASIS_TRY(CheckAllCopied(all));
    return all;
  };
  auto result = load();
  if (!result) (void)Release(Deadline::In(kReleaseLimit));
  return result;
}

// The mover maps the file and registers its memory. The file needs no name, since no other process
// uses it.
Status Mover::AttachRing(uint64_t load_bytes, uint64_t most_bytes, const Deadline& deadline) {
  const uint64_t bytes = RingFeed::RingBytes(load_bytes, most_bytes);
  if (process_.connected() && ring_.bytes() >= bytes) return {};
  UniqueFd file(::memfd_create("stasis-ring", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return FailErrno(errno, "make a ring of buffers");
  }
  STASIS_ASSIGN(Mapping ring, Mapping::Map(file.get(), bytes));
  Request request = Make(Op::kAttach);
  request.bytes = bytes;
  const int fd = file.get();
  STASIS_TRY(process_.CallOrStart(request, {&fd, 1}, deadline));
  STASIS_TRY(Warm(bytes, {}, deadline));
  ring_ = std::move(ring);
  return {};
}

Result<uint64_t> Mover::SendParts(const std::vector<LoadPart>& parts, const Deadline& deadline) {
  Request request = Make(Op::kLoadParts);
  uint64_t bytes = 0;
  for (const LoadPart& part : parts) {
    wire::WireRange& range = request.ranges[request.count++];
    range.size_bytes = part.bytes;
    range.arena_offset = part.zero ? wire::kZeros : part.buffer_offset;
    range.device_offset = part.device_offset;
    bytes += part.bytes;
  }
  STASIS_TRY(process_.Call(request, {}, deadline));
  return bytes;
}

Status Mover::CopyFrom(const LoadSource& source, const GoOn& go_on, const Deadline& deadline) {
  RingFeed feed(source, ring_.data(), ring_.bytes());
  uint64_t loaded = 0;
  const auto go_on_now = [&]() -> Status {
    if (!deadline.passed()) return go_on(loaded);
    return Fail(Code::kDeadlineExceeded, "it took too long to read the GPU data");
  };
  std::deque<std::vector<size_t>> in_flight;  // the buffers of each batch
  for (;;) {
    STASIS_ASSIGN(RingFeed::Batch batch, feed.Next(wire::kMaxBatch, go_on_now));
    if (batch.parts.empty()) break;
    STASIS_ASSIGN(const uint64_t bytes, SendParts(batch.parts, deadline));
    loaded += bytes;
    in_flight.push_back(std::move(batch.buffers));
    if (in_flight.size() < wire::kBatchesInFlight) continue;
    feed.Reuse(in_flight.front());
    in_flight.pop_front();
  }
  if (loaded == total_bytes_) return go_on(loaded);
  return Fail(Code::kInternal, "the source does not have the requested number of bytes");
}

Result<std::vector<Id128>> Mover::HashLoaded(const Deadline& deadline) {
  STASIS_ASSIGN(const UniqueFd file, MemoryFile("stasis-hashes", std::vector<Id128>()));
  const int fd = file.get();
  STASIS_TRY(process_.Call(Make(Op::kHash), {&fd, 1}, deadline));
  std::vector<Id128> hashes(blocks_);
  STASIS_TRY(PreadAll(fd, hashes.data(), hashes.size() * sizeof(Id128), 0));
  return hashes;
}

Status Mover::LoadFrom(const LoadSource& source, const GoOn& go_on, const Deadline& deadline) {
  auto load = [&]() -> Status {
    if (ring_.data() == nullptr) return Fail(Code::kFailedPrecondition, "the mover has no ring");
    STASIS_TRY(CopyFrom(source, go_on, deadline));
    STASIS_ASSIGN(std::vector<Id128> hashes, HashLoaded(deadline));
    return source.Check(std::move(hashes));
  };
  Status loaded = load();
  if (!loaded) (void)Release(Deadline::In(kReleaseLimit));
  return loaded;
}

Result<std::vector<UniqueFd>> Mover::Export(const Deadline& deadline) {
  std::vector<UniqueFd> fds;
  fds.reserve(count_);
  while (fds.size() < count_) {
    Request request = Make(Op::kExport);
    request.first = static_cast<uint32_t>(fds.size());
    request.count = static_cast<uint32_t>(std::min<size_t>(wire::kMaxBatch, count_ - fds.size()));
    const size_t before = fds.size();
    STASIS_TRY(process_.Call(request, {}, deadline, {}, &fds));
    if (fds.size() != before + request.count) {
      return Fail(Code::kInternal, "the mover did not send the requested number of descriptors");
    }
  }
  return fds;
}

Status Mover::Release(const Deadline& deadline) {
  if (!process_.connected()) return {};
  STASIS_TRY(process_.Call(Make(Op::kRelease), {}, deadline));
  return {};
}

}  // namespace stasis::dataplane
