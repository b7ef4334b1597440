#include "health/disk_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/own_path.h"

namespace stasis::health {
namespace {

constexpr uint64_t kPart = 4u << 20;
constexpr uint64_t kLeast = 16u << 20;
constexpr size_t kAlignment = 4096;

struct Freed {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Freed>;

// Returns data that a disk or file system can neither compress nor deduplicate.
Buffer RandomPart() {
  Buffer buffer(static_cast<char*>(std::aligned_alloc(kAlignment, kPart)));
  if (buffer == nullptr) return buffer;
  uint64_t state = 0x9E3779B97F4A7C15ull;
  for (uint64_t at = 0; at < kPart; at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::copy_n(reinterpret_cast<const char*>(&state), sizeof state, buffer.get() + at);
  }
  return buffer;
}

struct File {
  UniqueFd fd;
  bool direct = false;
};

// Opens a temporary file without a name, with O_DIRECT if the file system supports it (an older
// tmpfs does not). NFS and some FUSE file systems have no unnamed files; there the file gets a name
// that is removed at once.
Result<File> OpenNameless(const std::string& path) {
  // A worker of the daemon may have more rights than the user who chose the path, so it must not
  // follow links of other users.
  STASIS_ASSIGN(const UniqueFd place, OpenOwn(path, O_PATH | O_DIRECTORY));
  const std::string folder = fmt::format("/proc/self/fd/{}", place.get());
  for (int direct : {O_DIRECT, 0}) {
    if (auto fd = Open(folder, O_RDWR | O_TMPFILE | direct, 0600)) {
      return File{*std::move(fd), direct != 0};
    }
  }
  std::string name = folder + "/.stasis-check.XXXXXX";
  UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) return FailErrno(errno, "write to " + path);
  ::unlink(name.c_str());
  const bool direct = ::fcntl(fd.get(), F_SETFL, O_DIRECT) == 0;
  return File{std::move(fd), direct};
}

}  // namespace

Result<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t most_bytes,
                              std::chrono::milliseconds span) {
  STASIS_ASSIGN(const uint64_t free_bytes, FreeBytes(folder));
  const uint64_t bytes = std::min(most_bytes, free_bytes / 8) / kPart * kPart;
  if (bytes < kLeast) {
    return Fail(Code::kResourceExhausted,
                fmt::format("{} has only {} MiB free, too little to measure its speed", folder,
                            free_bytes >> 20));
  }
  STASIS_ASSIGN(File file, OpenNameless(folder));
  Buffer part = RandomPart();
  if (part == nullptr) return Fail(Code::kResourceExhausted, "too little memory for a measurement");

  DiskSpeed speed;
  speed.direct = file.direct;
  Deadline until = Deadline::In(span);
  Stopwatch writing;
  while (speed.bytes < bytes && !until.passed()) {
    const ssize_t size = TEMP_FAILURE_RETRY(
        ::pwrite(file.fd.get(), part.get(), kPart, static_cast<off_t>(speed.bytes)));
    if (size < 0) return FailErrno(errno, "write to " + folder);
    if (static_cast<uint64_t>(size) != kPart) {
      return Fail(Code::kResourceExhausted, "the file system of " + folder + " is full");
    }
    speed.bytes += kPart;
  }
  if (::fdatasync(file.fd.get()) != 0) return FailErrno(errno, "sync in " + folder);
  speed.write_bytes_per_s = static_cast<double>(speed.bytes) / writing.Seconds();

  until = Deadline::In(span);
  Stopwatch reading;
  uint64_t got = 0;
  while (got < speed.bytes && !until.passed()) {
    STASIS_TRY(PreadAll(file.fd.get(), part.get(), kPart, got));
    got += kPart;
  }
  speed.read_bytes_per_s = static_cast<double>(got) / reading.Seconds();
  return speed;
}

}  // namespace stasis::health
