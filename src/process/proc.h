// Information about one process from /proc. Every call is a snapshot: if the process ends, later
// calls return kNotFound, never a half-filled struct.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::process {

// A pid in this process's pid namespace.
struct HostPid {
  pid_t value = 0;
  auto operator<=>(const HostPid&) const = default;
};
std::string ToString(HostPid pid);

// Identifies a process uniquely: pids are reused, but a pid with its start time (clock ticks since
// boot) is not.
struct ProcessId {
  HostPid pid;
  uint64_t start_time = 0;
  auto operator<=>(const ProcessId&) const = default;
};

struct Stat {
  ProcessId id;
  std::string comm;
  char state = '?';  // R S D T t Z X ...
  HostPid parent;
  pid_t process_group = 0;
  pid_t session = 0;
  int tty = 0;  // device number of the controlling terminal, or 0
  uint64_t flags = 0;
  bool kernel_thread = false;
};
// Reads /proc/PID/stat.
Result<Stat> ReadStat(HostPid pid);
// Formats a process for messages: "process 4711 (node)".
std::string Describe(const Stat& stat);

// Credentials from /proc/PID/status.
struct Credentials {
  uid_t uid[4] = {};  // real, effective, saved, file system
  gid_t gid[4] = {};
  std::vector<gid_t> groups;
  uint64_t capabilities = 0;  // union of permitted, effective, inheritable and ambient
  HostPid tracer;             // 0 if none
  HostPid thread_group;
};
Result<Credentials> ReadCredentials(HostPid pid);

// Memory of a process from /proc/PID/status. A process without memory of its own has none of it.
struct MemoryUse {
  uint64_t anonymous_bytes = 0;  // resident private memory
  uint64_t shared_bytes = 0;     // resident memory in tmpfs, memfds and shared anonymous mappings
  uint64_t swapped_bytes = 0;
};
Result<MemoryUse> ReadMemoryUse(HostPid pid);

// Returns true if `tid` is a thread that is not the leader of its process. Returns false if it does
// not exist.
bool IsThreadOfAnother(pid_t tid);
// Returns a usage error with the process id if `pid`, given by the user, is a thread that is not
// the leader of its process.
Status CheckNotThread(HostPid pid);

struct OpenFile {
  int fd = -1;
  // Target of the link in /proc/PID/fd, for example "/dev/nvidia0" or "pipe:[4711]".
  std::string target;
};
Result<std::vector<OpenFile>> ReadOpenFiles(HostPid pid);

struct Mapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string perms;  // "rw-p"
  uint64_t offset = 0;
  uint64_t inode = 0;
  std::string path;  // may be empty; a trailing "(deleted)" is kept
};
// Reads the mappings in a child process with a deadline (process/memory.h): the kernel blocks the
// read while a thread of the process changes its mappings and waits for a file system that does not
// answer.
Result<std::vector<Mapping>> ReadMappings(HostPid pid);
// Reads the mappings directly. For use in a child process with a deadline.
Result<std::vector<Mapping>> ReadMappingsWithin(HostPid pid);

Result<std::vector<std::string>> ReadCommandLine(HostPid pid);
// Returns the path of the executable, with " (deleted)" if it was removed.
Result<std::string> ReadExecutable(HostPid pid);
// Returns the inode number of a namespace of the process, for example "pid", "mnt" or "user".
Result<uint64_t> ReadNamespace(HostPid pid, const std::string& kind);
Result<std::vector<pid_t>> ReadThreads(HostPid pid);

// Opens a pidfd. Returns kNotFound if the process has ended or the pid now belongs to another
// process.
Result<UniqueFd> OpenPidfd(const ProcessId& id);
// Returns true if the process is neither a zombie nor exiting.
bool IsAlive(const Stat& stat);
bool IsAlive(const ProcessId& id);

// Returns the id of the current boot. Start times of different boots cannot be compared.
Result<std::string> BootId();

}  // namespace stasis::process
