#include "process/shared_server.h"

#include <sys/stat.h>

#include "base/file.h"
#include "base/install_layout.h"

namespace stasis::process {
namespace {

constexpr const char* kSharedServers[] = {"stasis-mover", "softgpu-broker"};
constexpr const char* kReplaced = " (deleted)";  // replaced by an upgrade while it runs

// Compares the file, which may have several paths, and then the path, because an upgrade replaces
// the file.
bool Runs(HostPid pid, const std::string& program) {
  struct stat running, installed;
  const std::string link = "/proc/" + ToString(pid) + "/exe";
  if (::stat(link.c_str(), &running) == 0 && ::stat(program.c_str(), &installed) == 0 &&
      FileId::Of(running) == FileId::Of(installed)) {
    return true;
  }
  return ReadExecutable(pid).value_or("") == program + kReplaced;
}

}  // namespace

bool IsSharedServer(HostPid pid) {
  for (const char* name : kSharedServers) {
    auto program = LibexecProgram(name);
    if (program && Runs(pid, *program)) return true;
  }
  return false;
}

}  // namespace stasis::process
