#include "health/host_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "base/bounded.h"
#include "base/file.h"
#include "process/memory.h"

namespace stasis::health {
namespace {

constexpr size_t kMostBytes = 1u << 20;
constexpr size_t kMostThreads = 4096;

std::optional<std::string> Read(const std::string& path) {
  auto text = ReadFile(path, kMostBytes);
  if (!text) return std::nullopt;
  return *std::move(text);
}

std::string OfProcess(const std::string& root, process::HostPid pid, const std::string& name) {
  return root + "/proc/" + process::ToString(pid) + "/" + name;
}

// Parses a decimal number at the start of `text`, after blanks. `rest` receives the remaining text.
std::optional<uint64_t> Number(std::string_view text, std::string_view* rest = nullptr) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  if (rest != nullptr) *rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

// Returns the text after `key` at the start of a line, or empty if there is no such line.
std::string_view After(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key)) return line.substr(key.size());
    at = end + 1;
  }
  return {};
}

// Parses a line "Key:   4711 kB" and returns bytes. Returns no value on overflow.
std::optional<uint64_t> KibiBytes(std::string_view text, std::string_view key) {
  auto value = Number(After(text, key));
  if (!value || *value > UINT64_MAX >> 10) return std::nullopt;
  return *value << 10;
}

}  // namespace

std::optional<Memory> ReadMemory(const std::string& root) {
  auto text = Read(root + "/proc/meminfo");
  if (!text) return std::nullopt;
  auto available = KibiBytes(*text, "MemAvailable:");
  if (!available) return std::nullopt;
  Memory memory;
  memory.available_bytes = *available;
  memory.huge_page_bytes = KibiBytes(*text, "Hugepagesize:").value_or(0);
  memory.huge_pages = Number(After(*text, "HugePages_Total:")).value_or(0);
  memory.huge_pages_free = Number(After(*text, "HugePages_Free:")).value_or(0);
  return memory;
}

std::optional<std::string> ReadArm64Features(const std::string& root) {
  auto text = Read(root + "/proc/cpuinfo");
  if (!text) return std::nullopt;
  std::string_view features = After(*text, "Features");  // x86 has "flags"
  features.remove_prefix(std::min(features.find_first_not_of(" \t:"), features.size()));
  if (features.empty()) return std::nullopt;
  return std::string(features);
}

std::optional<std::string> ReadHugePagePolicy(const std::string& root, const std::string& name) {
  auto text = Read(root + "/sys/kernel/mm/transparent_hugepage/" + name);
  if (!text) return std::nullopt;
  const size_t begin = text->find('['), end = text->find(']');
  if (begin == std::string::npos || end == std::string::npos || end <= begin + 1)
    return std::nullopt;
  return text->substr(begin + 1, end - begin - 1);
}

std::optional<int> ReadPtraceScope(const std::string& root) {
  auto text = Read(root + "/proc/sys/kernel/yama/ptrace_scope");
  auto value = text ? Number(*text) : std::nullopt;
  if (!value || *value > 3) return std::nullopt;
  return static_cast<int>(*value);
}

std::optional<bool> IsMachinesUserNamespace(const std::string& root) {
  auto text = Read(root + "/proc/self/uid_map");
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  uint64_t fields[3];
  for (uint64_t& field : fields) {
    auto value = Number(rest, &rest);
    if (!value) return std::nullopt;
    field = *value;
  }
  constexpr uint64_t kAllIds = 4294967295;
  return fields[0] == 0 && fields[1] == 0 && fields[2] == kAllIds;
}

std::optional<KernelVersion> ParseKernelVersion(const std::string& release) {
  std::string_view rest;
  auto major = Number(release, &rest);
  if (!major || *major > 1000 || !rest.starts_with('.')) return std::nullopt;
  auto minor = Number(rest.substr(1));
  if (!minor || *minor > 1000) return std::nullopt;
  return KernelVersion{static_cast<int>(*major), static_cast<int>(*minor)};
}

std::optional<uint64_t> ReadLockedBytes(const std::string& root, process::HostPid pid) {
  auto text = Read(OfProcess(root, pid, "status"));
  return text ? KibiBytes(*text, "VmLck:") : std::nullopt;
}

std::optional<std::string> ReadVariable(const std::string& root, process::HostPid pid,
                                        const std::string& name) {
  const std::string path = OfProcess(root, pid, "environ");
  auto text = AskBounded([&](const NoteStep&) { return ReadFile(path, kMostBytes); },
                         Deadline::In(process::kMemoryAnswer));
  if (!text) return std::nullopt;
  std::istringstream entries(*text);
  for (std::string entry; std::getline(entries, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

std::optional<uint64_t> CountWatches(const std::string& root, process::HostPid pid, int fd) {
  auto text = Read(OfProcess(root, pid, "fdinfo/" + std::to_string(fd)));
  if (!text) return std::nullopt;
  uint64_t count = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) count += line.starts_with("inotify wd:");
  return count;
}

std::optional<bool> IsTimerRunning(const std::string& root, process::HostPid pid, int fd) {
  auto text = Read(OfProcess(root, pid, "fdinfo/" + std::to_string(fd)));
  if (!text) return std::nullopt;
  // "it_value: (SECONDS, NANOSECONDS)": the remaining time, zero for a disarmed timer.
  std::string_view value = After(*text, "it_value: (");
  auto seconds = Number(value, &value);
  if (!seconds || !value.starts_with(',')) return std::nullopt;
  auto nanoseconds = Number(value.substr(1));
  if (!nanoseconds) return std::nullopt;
  return *seconds != 0 || *nanoseconds != 0;
}

std::vector<std::string> ReadThreadNames(const std::string& root, process::HostPid pid) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator threads(OfProcess(root, pid, "task"), error), end;
  for (; !error && threads != end && names.size() < kMostThreads; threads.increment(error)) {
    auto name = Read(threads->path().string() + "/comm");
    if (!name) continue;  // ended meanwhile
    while (name->ends_with('\n')) name->pop_back();
    names.push_back(*std::move(name));
  }
  return names;
}

}  // namespace stasis::health
