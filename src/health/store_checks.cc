// Checks of the folders to which Stasis writes: its state folder and the image store.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "base/bounded.h"
#include "base/file.h"
#include "health/disk_speed.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

constexpr uint64_t kLittleForRecords = 16u << 20;
constexpr uint64_t kTooLittleForRecords = 1u << 20;
constexpr uint64_t kTooLittleForImages = 64u << 20;
constexpr uint64_t kMeasured = 256u << 20;
constexpr std::chrono::milliseconds kMeasuring{3000};  // in each direction
constexpr double kSlowBytesPerS = 200e6;

// Returns the free bytes of the file system of `path`, which need not exist yet. Returns an error
// if this user may not write there.
Result<uint64_t> AskRoom(const Machine& machine, const std::string& path) {
  STASIS_ASSIGN(std::string text, AskBounded(
                                      [&](const NoteStep&) -> Result<std::string> {
                                        const std::string folder = ExistingPart(path);
                                        if (::access(folder.c_str(), W_OK) != 0) {
                                          return FailErrno(errno, "write to " + folder);
                                        }
                                        STASIS_ASSIGN(const uint64_t free, FreeBytes(folder));
                                        return std::to_string(free);
                                      },
                                      machine.Patience()));
  uint64_t free_bytes = 0;
  std::from_chars(text.data(), text.data() + text.size(), free_bytes);
  return free_bytes;
}

Finding Unanswered(const char* id, const std::string& path, const Error& error) {
  return Finding::Of(id, Level::kCannot, path + ": " + error.ToString(), error.hint);
}

}  // namespace

void CheckRunFolder(const Machine& machine, Findings& findings) {
  const std::string& path = machine.options.paths.run;
  auto room = AskRoom(machine, path);
  if (!room) return findings.push_back(Unanswered("run-folder", path, room.error()));
  Level level = *room < kLittleForRecords ? Level::kWarning : Level::kOk;
  if (*room < kTooLittleForRecords) level = Level::kCannot;
  findings.push_back(
      Finding::Of("run-folder", level, fmt::format("{}, {} MiB free", path, *room >> 20)));
}

void CheckImageStore(const Machine& machine, Findings& findings) {
  const std::string path = machine.options.paths.images();
  auto room = AskRoom(machine, path);
  if (!room) return findings.push_back(Unanswered("image-store", path, room.error()));
  std::string found = fmt::format("{}, {} MiB free", path, *room >> 20);
  Level level = Level::kOk;
  if (*room < kTooLittleForImages) {
    level = Level::kCannot;
  } else if (const uint64_t used = machine.gpu_bytes(true); *room < used) {
    level = Level::kWarning;
    found += fmt::format("; programs use {} MiB of GPU memory", used >> 20);
  }
  findings.push_back(Finding::Of("image-store", level, found));
}

void CheckDiskSpeed(const Machine& machine, Findings& findings) {
  if (!machine.options.full) return;
  const std::string store = machine.options.paths.images();
  double write = 0;
  auto text = AskBounded(
      [&](const NoteStep&) -> Result<std::string> {
        const std::string folder = ExistingPart(store);
        STASIS_ASSIGN(DiskSpeed speed, MeasureDisk(folder, kMeasured, kMeasuring));
        return fmt::format(
            "{:.0f}\n{}: {:.0f} MB/s written and synced, {:.0f} MB/s read ({} MiB{})",
            speed.write_bytes_per_s, folder, speed.write_bytes_per_s / 1e6,
            speed.read_bytes_per_s / 1e6, speed.bytes >> 20,
            speed.direct ? "" : ", through the page cache");
      },
      machine.Patience());
  if (!text) {
    // With too little space for the measurement, "image-store" is already kCannot.
    const bool full = text.error().code == Code::kResourceExhausted;
    findings.push_back(Finding::Of("disk-speed", full ? Level::kWarning : Level::kCannot,
                                   store + ": " + text.error().ToString(), text.error().hint));
    return;
  }
  std::from_chars(text->data(), text->data() + text->size(), write);
  findings.push_back(Finding::Of("disk-speed",
                                 write < kSlowBytesPerS ? Level::kWarning : Level::kOk,
                                 text->substr(text->find('\n') + 1)));
}

}  // namespace stasis::health
