#include "shim/descendants.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/file.h"
#include "process/proc.h"

namespace stasis::shim {
namespace {

// Zombies too. From the one file that says so (CRIU needs it as well), since a child that hops from
// fork to fork has to be hit before it hops again; else from all of /proc.
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
  auto names = ListDir("/proc");
  if (!names) return {};
  for (const auto& name : *names) {
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    auto stat = process::ReadStat({std::atoi(name.c_str())});
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
  // What is further down becomes our child when its parent ends, and that end is what wakes us for
  // the next look: nobody is missed, and nothing is waited for in vain.
  do {
    for (pid_t pid : Children()) ::kill(pid, SIGKILL);
  } while (TEMP_FAILURE_RETRY(::waitpid(-1, nullptr, __WALL)) > 0);
}

}  // namespace stasis::shim
