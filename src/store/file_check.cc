#include "store/file_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/checksum.h"
#include "base/file.h"
#include "base/parallel.h"
#include "store/beneath.h"

namespace stasis::store {

namespace {

constexpr size_t kReadBytes = 1 << 20;

Result<Id128> ChecksumOfChunk(int folder_fd, const File& file, uint64_t offset, uint64_t size,
                              Writeback writeback, std::atomic<uint64_t>& done) {
  STASIS_ASSIGN(OpenedFile opened, OpenRegular(folder_fd, file.path));
  int fd = opened.fd.get();
  auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  ChecksumStream stream;
  for (uint64_t at = offset; at < offset + size;) {
    size_t n = std::min<uint64_t>(kReadBytes, offset + size - at);
    STASIS_TRY(PreadAll(fd, buffer.get(), n, at));
    stream.Update({buffer.get(), n});
    at += n;
    done += n;
  }
  if (writeback == Writeback::kStart) {
    // Errors are ignored: a later fsync writes the data in any case.
    (void)::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(size),
                            SYNC_FILE_RANGE_WRITE);
  }
  return stream.Finish();
}

}  // namespace

Status ComputeChecksums(int folder_fd, uint32_t chunk_bytes, std::vector<ChecksumJob>& jobs,
                        Writeback writeback, const Progress& progress) {
  struct Chunk {
    size_t job;
    size_t index;
  };
  std::vector<Chunk> chunks;
  uint64_t total = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    File& file = jobs[i].file;
    total += file.size_bytes;
    file.checksums.resize((file.size_bytes + chunk_bytes - 1) / chunk_bytes);
    for (size_t c = 0; c < file.checksums.size(); ++c) chunks.push_back({i, c});
  }

  std::atomic<uint64_t> done{0};
  std::mutex errors;  // guards the jobs' errors
  auto work = [&](size_t i) -> Status {
    ChecksumJob& job = jobs[chunks[i].job];
    uint64_t offset = uint64_t{chunks[i].index} * chunk_bytes;
    uint64_t size = std::min<uint64_t>(chunk_bytes, job.file.size_bytes - offset);
    auto checksum = ChecksumOfChunk(folder_fd, job.file, offset, size, writeback, done);
    if (checksum) {
      job.file.checksums[chunks[i].index] = *checksum;
      return {};
    }
    std::lock_guard lock(errors);
    if (!job.error) job.error = std::move(checksum.error());
    return {};
  };
  return ForEachWithProgress(chunks.size(), work, done, total, progress);
}

Status SyncAll(int folder_fd, const std::vector<std::string>& paths, const Progress& progress) {
  std::atomic<uint64_t> done{0};
  auto work = [&](size_t i) -> Status {
    STASIS_ASSIGN(UniqueFd fd, OpenBeneath(folder_fd, paths[i], O_RDONLY));
    if (::fsync(fd.get()) != 0) return FailErrno(errno, "sync " + paths[i]);
    ++done;
    return {};
  };
  return ForEachWithProgress(paths.size(), work, done, paths.size(), progress);
}

}  // namespace stasis::store
