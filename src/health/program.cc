#include "health/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "health/host_files.h"

namespace stasis::health {
namespace {

const std::string kRoot;  // this machine's /proc

struct Looked {
  const process::Stat& member;
  std::vector<process::OpenFile> files;
  std::vector<Finding>& findings;

  void Add(const char* id, Level level, const std::string& what) const {
    findings.push_back(Finding::Of(
        id, level, fmt::format("process {} ({}) {}", member.id.pid.value, member.comm, what)));
  }
};

void LookForWatchdogDevice(const Looked& looked) {
  for (const auto& file : looked.files) {
    if (!file.target.starts_with("/dev/watchdog")) continue;
    return looked.Add("watchdog-device", Level::kWarning,
                      fmt::format("has {} open (fd {})", file.target, file.fd));
  }
}

// Reads the same environment variables as sd_watchdog_enabled(3). If WATCHDOG_PID names another
// process, this process only inherited them.
void LookForSystemd(const Looked& looked) {
  const process::HostPid pid = looked.member.id.pid;
  auto span = ReadVariable(kRoot, pid, "WATCHDOG_USEC");
  if (!span || !ReadVariable(kRoot, pid, "NOTIFY_SOCKET")) return;
  auto meant = ReadVariable(kRoot, pid, "WATCHDOG_PID");
  if (meant && *meant != process::ToString(pid)) return;
  const bool number = span->size() <= 18 && !span->empty() &&
                      span->find_first_not_of("0123456789") == std::string::npos;
  if (!number) return;
  looked.Add("watchdog-systemd", Level::kWarning,
             fmt::format("must report to systemd's watchdog every {:.3g} s",
                         static_cast<double>(std::stoull(*span)) / 1e6));
}

// Thread names of PyTorch's ProcessGroupNCCL (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
constexpr std::string_view kWatchers[] = {"pt_nccl_watchdg", "pt_nccl_heartbt"};
void LookForWatchers(const Looked& looked) {
  for (const std::string& name : ReadThreadNames(kRoot, looked.member.id.pid)) {
    if (std::find(std::begin(kWatchers), std::end(kWatchers), name) == std::end(kWatchers))
      continue;
    return looked.Add("watchdog-thread", Level::kWarning, fmt::format("has a thread '{}'", name));
  }
}

void LookForTimers(const Looked& looked) {
  size_t running = 0;
  for (const auto& file : looked.files) {
    if (file.target != "anon_inode:[timerfd]") continue;
    running += IsTimerRunning(kRoot, looked.member.id.pid, file.fd).value_or(false);
  }
  if (running == 0) return;
  looked.Add("timers", Level::kNote, fmt::format("has {} armed timerfds", running));
}

void LookForWatches(const Looked& looked) {
  uint64_t watches = 0;
  for (const auto& file : looked.files) {
    if (!file.target.starts_with("anon_inode:inotify")) continue;
    watches += CountWatches(kRoot, looked.member.id.pid, file.fd).value_or(0);
  }
  if (watches == 0) return;
  looked.Add("inotify", Level::kNote, fmt::format("watches {} files or folders", watches));
}

void LookForLockedMemory(const Looked& looked) {
  const uint64_t bytes = ReadLockedBytes(kRoot, looked.member.id.pid).value_or(0);
  if (bytes == 0) return;
  looked.Add("locked-memory", Level::kNote, fmt::format("has locked {} KiB", bytes >> 10));
}

constexpr void (*kLooks[])(const Looked&) = {LookForWatchdogDevice, LookForSystemd,
                                             LookForWatchers,       LookForTimers,
                                             LookForWatches,        LookForLockedMemory};

}  // namespace

std::vector<Finding> LookAtProgram(const process::ProcessTree& tree) {
  std::vector<Finding> findings;
  const size_t count = std::min(tree.members.size(), kMostProcesses);
  for (size_t i = 0; i < count; ++i) {
    auto files = process::ReadOpenFiles(tree.members[i].id.pid);
    // Reading fails if the process has ended or may not be inspected. Its files are then skipped.
    Looked looked{tree.members[i], files ? *std::move(files) : std::vector<process::OpenFile>(),
                  findings};
    for (auto look : kLooks) look(looked);
  }
  return findings;
}

}  // namespace stasis::health
