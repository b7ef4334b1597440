// Parsers of files in /proc and /sys. `root` is a prefix for paths, empty except in tests. Each
// file is read up to a size limit. The functions return no value for a missing, overlong or
// malformed file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "process/proc.h"

namespace stasis::health {

struct Memory {
  uint64_t available_bytes = 0;
  uint64_t huge_page_bytes = 0;  // size of one page
  uint64_t huge_pages = 0;       // pages reserved for hugetlbfs
  uint64_t huge_pages_free = 0;
};
std::optional<Memory> ReadMemory(const std::string& root);

// Returns the selected word of a file such as "always [madvise] never". `name` is "enabled" or
// "shmem_enabled".
std::optional<std::string> ReadHugePagePolicy(const std::string& root, const std::string& name);

// Returns kernel.yama.ptrace_scope, 0 to 3, or no value if the kernel has no Yama. Without Yama,
// ptrace is not restricted further.
std::optional<int> ReadPtraceScope(const std::string& root);

// Returns the processor's features as an arm64 kernel names them, such as "fp asimd sve", or no
// value on other processors.
std::optional<std::string> ReadArm64Features(const std::string& root);

// Returns true if all user ids map to themselves, as they do in the initial user namespace.
std::optional<bool> IsMachinesUserNamespace(const std::string& root);

// Parses "6.1.0-18-amd64" to {6, 1}.
struct KernelVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
std::optional<KernelVersion> ParseKernelVersion(const std::string& release);

// Returns the amount of locked memory of a process.
std::optional<uint64_t> ReadLockedBytes(const std::string& root, process::HostPid pid);
// Returns the value of an environment variable with which the process was started.
std::optional<std::string> ReadVariable(const std::string& root, process::HostPid pid,
                                        const std::string& name);
// Returns the number of watches of an inotify descriptor.
std::optional<uint64_t> CountWatches(const std::string& root, process::HostPid pid, int fd);
// Returns true if a timerfd is armed.
std::optional<bool> IsTimerRunning(const std::string& root, process::HostPid pid, int fd);
// Returns the names of the process's threads.
std::vector<std::string> ReadThreadNames(const std::string& root, process::HostPid pid);

}  // namespace stasis::health
