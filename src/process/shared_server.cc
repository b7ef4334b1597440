#include "process/shared_server.h"

#include <sys/stat.h>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "base/install_layout.h"

namespace stasis::process {
namespace {

constexpr const char* kSharedServers[] = {"stasis-mover", "stasis-device-helper"};
constexpr const char* kReplaced = " (deleted)";  // replaced by an upgrade while it runs

}  // namespace

// Compares the files first, because one file may have several paths, and then the paths, because an
// upgrade replaces the file while a server runs.
bool RunsLibexecProgram(HostPid pid, const std::string& name) {
  auto program = LibexecProgram(name);
  if (!program) return false;
  struct stat running, installed;
  const std::string link = "/proc/" + ToString(pid) + "/exe";
  if (::stat(link.c_str(), &running) == 0 && ::stat(program->c_str(), &installed) == 0 &&
      FileId::Of(running) == FileId::Of(installed)) {
    return true;
  }
  return ReadExecutable(pid).value_or("") == *program + kReplaced;
}

bool IsSharedServer(HostPid pid) {
  for (const char* name : kSharedServers) {
    if (RunsLibexecProgram(pid, name)) return true;
  }
  for (const abi::DriverKind& kind : abi::kDriverKinds) {
    if (!kind.server.empty() && RunsLibexecProgram(pid, std::string(kind.server))) return true;
  }
  return false;
}

}  // namespace stasis::process
