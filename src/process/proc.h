// What /proc says about one process. Every call is a snapshot: a process may end between two of
// them, and then the answer is kNotFound, never a half-filled struct.
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

// A process id in our own pid namespace.
struct HostPid {
  pid_t value = 0;
  auto operator<=>(const HostPid&) const = default;
};
std::string ToString(HostPid pid);

// A process for ever: pids are used again, a pid with its start time (clock ticks since boot) is
// not.
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
  int tty = 0;  // device number of the controlling terminal, 0 for none
  uint64_t flags = 0;
  bool kernel_thread = false;
};
Result<Stat> ReadStat(HostPid pid);

// From /proc/PID/status.
struct Credentials {
  uid_t uid[4] = {};  // real, effective, saved, file system
  gid_t gid[4] = {};
  std::vector<gid_t> groups;
  uint64_t capabilities = 0;  // permitted, effective, inheritable or ambient
  HostPid tracer;             // 0: none
  HostPid thread_group;
  uint64_t rss_bytes = 0;
};
Result<Credentials> ReadCredentials(HostPid pid);

// True when `tid` names a thread that is not the leader of its process; false also when it does not
// exist.
bool IsThreadOfAnother(pid_t tid);

struct OpenFile {
  int fd = -1;
  std::string target;  // what the link in /proc/PID/fd says, e.g. "/dev/nvidia0", "pipe:[4711]"
};
Result<std::vector<OpenFile>> ReadOpenFiles(HostPid pid);

struct Mapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string perms;  // "rw-p"
  uint64_t offset = 0;
  uint64_t inode = 0;
  std::string path;  // may be empty; "(deleted)" is kept at its end
};
Result<std::vector<Mapping>> ReadMappings(HostPid pid);

Result<std::vector<std::string>> ReadCommandLine(HostPid pid);
Result<std::string> ReadExecutable(HostPid pid);
// inode number of a namespace of the process, e.g. "pid", "mnt", "user".
Result<uint64_t> ReadNamespace(HostPid pid, const std::string& kind);
Result<std::vector<pid_t>> ReadThreads(HostPid pid);

// A handle that stays with this very process; kNotFound when it is gone or the pid belongs to
// another now.
Result<UniqueFd> OpenPidfd(const ProcessId& id);
// The process lives: it is neither a zombie nor on its way to one, giving back what it held.
bool IsAlive(const Stat& stat);
bool IsAlive(const ProcessId& id);

// The boot that this machine is in: start times mean nothing across two of them.
Result<std::string> BootId();

}  // namespace stasis::process
