#include "shim/descendants.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/file.h"
#include "process/proc.h"
#include "process/search.h"
#include "process/shared_server.h"

namespace stasis::shim {
namespace {

// Returns the children, including zombies. Reads the `children` file of /proc (which CRIU also
// needs) because a process that forks in a loop must be killed before its next fork; without that
// file, scans all of /proc.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  if (auto text = ReadFile("/proc/thread-self/children")) {
    char* at = text->data();
    for (char* end = nullptr;; at = end) {
      long pid = std::strtol(at, &end, 10);
      if (end == at) return children;
      children.push_back(static_cast<pid_t>(pid));
    }
  }
  for (process::HostPid pid : process::ListProcesses().value_or(std::vector<process::HostPid>())) {
    auto stat = process::ReadStat(pid);
    if (stat && stat->parent.value == ::getpid()) children.push_back(stat->id.pid.value);
  }
  return children;
}

}  // namespace

void KillDescendants(pid_t criu) {
  if (criu > 0) {
    ::kill(criu, SIGKILL);
    TEMP_FAILURE_RETRY(::waitpid(criu, nullptr, 0));
  }
  // A grandchild becomes a child when its parent exits, and that exit ends the wait below and
  // starts the next scan. So no process is missed, and no wait lasts forever.
  do {
    // Reaps zombies before the scan, because each zombie slows the scan down. A process that forks
    // and exits in a loop makes new zombies all the time, and only a fast scan catches it.
    while (::waitpid(-1, nullptr, __WALL | WNOHANG) > 0) {
    }
    bool waits = false;
    for (pid_t pid : Children()) {
      if (process::IsSharedServer({pid})) continue;
      ::kill(pid, SIGKILL);
      waits = true;
    }
    if (!waits) return;
  } while (TEMP_FAILURE_RETRY(::waitpid(-1, nullptr, __WALL)) > 0);
}

bool OnlySharedServersLeft() {
  const std::vector<pid_t> children = Children();
  return std::all_of(children.begin(), children.end(),
                     [](pid_t pid) { return process::IsSharedServer({pid}); });
}

}  // namespace stasis::shim
