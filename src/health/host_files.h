// What files in /proc and /sys say about the machine. `root` goes before their paths: "" for the
// machine's own. Each file is read up to a bound, and one that is missing, too long or not what it
// should be is absent, not a guess.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "process/proc.h"

namespace stasis::health {

struct Memory {
  uint64_t available_bytes = 0;
  uint64_t huge_page_bytes = 0;  // of one
  uint64_t huge_pages = 0;       // set aside for hugetlbfs
  uint64_t huge_pages_free = 0;
};
std::optional<Memory> ReadMemory(const std::string& root);

// The chosen word of a file as "always [madvise] never": `name` is "enabled" or "shmem_enabled".
std::optional<std::string> ReadHugePagePolicy(const std::string& root, const std::string& name);

// kernel.yama.ptrace_scope, 0 to 3; absent where there is no Yama, which restricts nothing.
std::optional<int> ReadPtraceScope(const std::string& root);

// All user ids of the machine are known here by their own numbers.
std::optional<bool> IsMachinesUserNamespace(const std::string& root);

// "6.1.0-18-amd64" is {6, 1}.
struct KernelVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
std::optional<KernelVersion> ParseKernelVersion(const std::string& release);

// Of one process; absent for one that is not there, or that may not be read.
std::optional<uint64_t> ReadLockedBytes(const std::string& root, process::HostPid pid);
// The value of a variable in the environment that it was started with.
std::optional<std::string> ReadVariable(const std::string& root, process::HostPid pid,
                                        const std::string& name);
// How many watches an inotify descriptor has, and whether a timerfd is running.
std::optional<uint64_t> CountWatches(const std::string& root, process::HostPid pid, int fd);
std::optional<bool> IsTimerRunning(const std::string& root, process::HostPid pid, int fd);
// The names of its threads.
std::vector<std::string> ReadThreadNames(const std::string& root, process::HostPid pid);

}  // namespace stasis::health
