#include "dataplane/copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace stasis::dataplane {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names

constexpr uint64_t kBufferBytes = 32u << 20;

Status ReadOrWrite(Direction direction, int fd, char* buffer, const Piece& piece) {
  for (uint64_t done = 0; done < piece.bytes;) {
    const auto at = static_cast<off_t>(piece.arena_offset + done);
    const size_t left = piece.bytes - done;
    const ssize_t n = direction == Direction::kToArena
                          ? TEMP_FAILURE_RETRY(::pwrite(fd, buffer + done, left, at))
                          : TEMP_FAILURE_RETRY(::pread(fd, buffer + done, left, at));
    if (n < 0) return FailErrno(errno, "copy the arena's file");
    if (n == 0) return Fail(Code::kDataLoss, "the arena's file ends too early");
    done += static_cast<uint64_t>(n);
  }
  return {};
}

// Writes file pages to the disk while more are copied, and drops them from memory, so that a save
// to a file needs little memory. An error of the disk that is reported here is not reported again
// by fdatasync.
Status StartWrite(int fd, const Piece& piece) {
  const auto at = static_cast<off_t>(piece.arena_offset);
  if (::sync_file_range(fd, at, static_cast<off_t>(piece.bytes), SYNC_FILE_RANGE_WRITE) == 0) {
    return {};
  }
  return FailErrno(errno, "write the arena's file to the disk");
}
Status FinishWrite(int fd, const Piece& piece) {
  const auto at = static_cast<off_t>(piece.arena_offset);
  const auto bytes = static_cast<off_t>(piece.bytes);
  constexpr unsigned kWhole =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (::sync_file_range(fd, at, bytes, kWhole) != 0) {
    return FailErrno(errno, "write the arena's file to the disk");
  }
  (void)::posix_fadvise(fd, at, bytes, POSIX_FADV_DONTNEED);
  return {};
}

}  // namespace

Status Copier::Start() {
  for (CUstream& stream : streams_) {
    if (stream == nullptr) STASIS_GPU(gpu_, cuStreamCreate, (&stream, CU_STREAM_NON_BLOCKING));
  }
  for (CUevent& event : events_) {
    if (event == nullptr) {
      STASIS_GPU(gpu_, cuEventCreate, (&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
    }
  }
  return {};
}

Status Copier::Submit(Direction direction, CUdeviceptr device, void* host, uint64_t bytes,
                      CUstream stream) {
  if (direction == Direction::kToArena) {
    STASIS_GPU(gpu_, cuMemcpyDtoHAsync_v2, (host, device, bytes, stream));
  } else {
    STASIS_GPU(gpu_, cuMemcpyHtoDAsync_v2, (device, host, bytes, stream));
  }
  return {};
}

Status Copier::WaitForCopies() {
  for (CUstream stream : streams_) STASIS_GPU(gpu_, cuStreamSynchronize, (stream));
  return {};
}

Result<CopyReport> Copier::Copy(Direction direction, AttachedArena& arena, CUdeviceptr base,
                                const Pieces& pieces, const Progress& progress) {
  uint64_t zero_bytes = 0;
  auto clear = [&]() -> Status {
    for (const Piece& piece : pieces.zero) {
      zero_bytes += piece.bytes;
      if (direction == Direction::kToArena) continue;
      STASIS_GPU(gpu_, cuMemsetD8Async, (base + piece.device_offset, 0, piece.bytes, streams_[0]));
    }
    return {};
  };
  auto piece = pieces.stored.begin();
  auto next = [&]() -> Result<std::optional<Group>> {
    if (piece == pieces.stored.end()) return std::nullopt;
    Group group{piece->arena_offset / arena.chunk_bytes(), {}, 0};
    for (; piece != pieces.stored.end(); ++piece) {
      if (piece->arena_offset / arena.chunk_bytes() != group.chunk) break;
      group.pieces.push_back(*piece);
      group.bytes += piece->bytes;
    }
    return group;
  };
  STASIS_ASSIGN(CopyReport report, Run(direction, arena, base, clear, next, progress));
  report.cleared_bytes = zero_bytes;
  return report;
}

Result<CopyReport> Copier::Save(AttachedArena& arena, CUdeviceptr base, const NextGroup& next,
                                const Progress& progress) {
  return Run(
      Direction::kToArena, arena, base, [] { return Status{}; }, next, progress);
}

Result<CopyReport> Copier::Run(Direction direction, AttachedArena& arena, CUdeviceptr base,
                               const std::function<Status()>& begin, const NextGroup& next,
                               const Progress& progress) {
  STASIS_TRY(Start());
  watch_ = Stopwatch();
  CopyReport report;
  Status status = begin();
  if (status) status = CopyGroups(direction, arena, base, next, progress, report);
  // Even after an error, no copy may be in flight when the caller frees the memory.
  Status settled = WaitForCopies();
  if (!status) return Fail(std::move(status.error()));
  if (!settled) return Fail(std::move(settled.error()));
  report.elapsed_ns = ElapsedNs();
  report.staged = arena.staged();
  return report;
}

Status Copier::CopyGroups(Direction direction, AttachedArena& arena, CUdeviceptr base,
                          const NextGroup& next, const Progress& progress, CopyReport& report) {
  uint64_t bytes[kWindow] = {};  // sizes of the chunks in flight
  size_t submitted = 0, arrived = 0;
  auto arrive = [&]() -> Status {
    STASIS_GPU(gpu_, cuEventSynchronize, (events_[arrived % kWindow]));
    report.copied_bytes += bytes[arrived++ % kWindow];
    progress(report.copied_bytes);
    return {};
  };
  // Groups that next() has returned and that are not submitted yet. If an arena's chunk is not
  // ready, all groups are fetched at once, because the preparation needs the list of all chunks.
  std::deque<Group> ahead;
  bool all_known = false;
  auto learn_all = [&]() -> Status {
    for (; !all_known;) {
      STASIS_ASSIGN(auto group, next());
      all_known = !group.has_value();
      if (group) ahead.push_back(std::move(*group));
    }
    return {};
  };
  std::optional<AttachedArena::Preparation> preparation;
  for (size_t prepared = 0;; ++submitted) {
    if (ahead.empty() && !all_known) {
      STASIS_ASSIGN(auto group, next());
      all_known = !group.has_value();
      if (group) ahead.push_back(std::move(*group));
    }
    if (ahead.empty()) break;
    if (!preparation && !arena.IsReady(ahead.front().chunk)) {
      STASIS_TRY(learn_all());
      std::vector<uint64_t> chunks;
      for (const Group& group : ahead) chunks.push_back(group.chunk);
      preparation.emplace(arena, chunks);
    }
    if (preparation) STASIS_TRY(preparation->Ready(prepared++));
    if (arena.staged()) break;
    if (submitted - arrived == kWindow) STASIS_TRY(arrive());
    CUstream stream = streams_[submitted % kStreams];
    if (submitted == 0) report.until_first_ns = ElapsedNs();
    const Group& group = ahead.front();
    for (const Piece& piece : group.pieces) {
      STASIS_TRY(Submit(direction, base + piece.device_offset, arena.data() + piece.arena_offset,
                        piece.bytes, stream));
    }
    STASIS_GPU(gpu_, cuEventRecord, (events_[submitted % kWindow], stream));
    bytes[submitted % kWindow] = group.bytes;
    ahead.pop_front();
  }
  while (arrived < submitted) STASIS_TRY(arrive());
  if (preparation) report.cold_bytes = preparation->cold_bytes();
  STASIS_TRY(learn_all());
  return ahead.empty() ? Status{} : CopyStaged(direction, arena, base, ahead, progress, report);
}

// Uses two buffers: while one is copied to or from the GPU, the other is read from or written to
// the file.
Status Copier::CopyStaged(Direction direction, AttachedArena& arena, CUdeviceptr base,
                          const std::deque<Group>& groups, const Progress& progress,
                          CopyReport& report) {
  for (char*& buffer : buffers_) {
    if (buffer != nullptr) continue;
    void* memory = nullptr;
    STASIS_GPU(gpu_, cuMemHostAlloc, (&memory, kBufferBytes, 0));
    buffer = static_cast<char*>(memory);
  }
  std::vector<Piece> parts;
  for (const Group& group : groups) {
    for (const Piece& piece : group.pieces) {
      for (uint64_t done = 0; done < piece.bytes; done += kBufferBytes) {
        parts.push_back({piece.device_offset + done, piece.arena_offset + done,
                         std::min(kBufferBytes, piece.bytes - done)});
      }
    }
  }
  const bool save = direction == Direction::kToArena;
  for (size_t i = 0; i < parts.size() + (save ? 1 : 0); ++i) {
    // The buffer's stream orders its copies; the host writes or reads the file in between.
    if (save && i < parts.size()) {
      STASIS_TRY(Submit(direction, base + parts[i].device_offset, buffers_[i % 2], parts[i].bytes,
                        streams_[i % 2]));
    }
    if (save && i == 0) continue;
    const size_t now = save ? i - 1 : i;
    STASIS_GPU(gpu_, cuStreamSynchronize, (streams_[now % 2]));
    STASIS_TRY(ReadOrWrite(direction, arena.fd(), buffers_[now % 2], parts[now]));
    if (save) {
      STASIS_TRY(StartWrite(arena.fd(), parts[now]));
      if (now > 0) STASIS_TRY(FinishWrite(arena.fd(), parts[now - 1]));
    } else {
      STASIS_TRY(Submit(direction, base + parts[now].device_offset, buffers_[now % 2],
                        parts[now].bytes, streams_[now % 2]));
    }
    report.copied_bytes += parts[now].bytes;
    progress(report.copied_bytes);
  }
  if (!save || parts.empty()) return {};
  STASIS_TRY(FinishWrite(arena.fd(), parts.back()));
  if (::fdatasync(arena.fd()) != 0) return FailErrno(errno, "sync the arena's file");
  return {};
}

}  // namespace stasis::dataplane
