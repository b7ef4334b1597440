#include "process/namespace.h"

#include <unistd.h>

#include <sstream>

#include "base/file.h"
#include "process/search.h"

namespace stasis::process {

Result<pid_t> ReadInnerPid(HostPid pid) {
  auto text = ReadFile("/proc/" + ToString(pid) + "/status");
  if (!text)
    return Fail(Code::kNotFound, Domain::kProcess, 0, "there is no process " + ToString(pid));
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    // "NSpid:\t4711\t12": the pid in each namespace, from this one to the process's own.
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(6));
    pid_t inner = 0;
    for (pid_t number; numbers >> number;) inner = number;
    if (inner > 0) return inner;
  }
  return Fail(Code::kInternal, "/proc/" + ToString(pid) + "/status has no NSpid line");
}

Result<HostPid> FindByInnerPid(uint64_t pid_namespace, pid_t inner) {
  STASIS_ASSIGN(auto pids, ListProcesses());
  for (HostPid pid : pids) {
    auto number = ReadInnerPid(pid);
    if (!number || *number != inner) continue;
    auto its = ReadNamespace(pid, "pid");
    if (its && *its == pid_namespace) return pid;
  }
  return Fail(Code::kNotFound, Domain::kProcess, 0,
              "there is no process " + std::to_string(inner) + " in pid namespace " +
                  std::to_string(pid_namespace));
}

Result<bool> IsInOtherPidNamespace(HostPid pid) {
  STASIS_ASSIGN(uint64_t its, ReadNamespace(pid, "pid"));
  STASIS_ASSIGN(uint64_t ours, ReadNamespace({::getpid()}, "pid"));
  return its != ours;
}

}  // namespace stasis::process
