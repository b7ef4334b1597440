#include "operations/held_criu.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <iterator>

#include "base/file.h"
#include "process/tree.h"

namespace stasis::operations {
namespace {

constexpr char kAgentThreads[] = "stasis-";

}  // namespace

Result<std::unique_ptr<criu::CriuSession>> HeldCriu::StartDump(const std::string&,
                                                               const criu::DumpRequest&, bool,
                                                               const std::map<int, int>&,
                                                               const Deadline&) {
  return Fail(Code::kInternal, "this CRIU process is not performing a dump");
}

std::vector<pid_t> GpuThreads(const gpu_state::Services& services, process::HostPid root) {
  std::vector<pid_t> found;
  auto tree = process::ReadTree(root);
  if (!tree) return found;
  for (const auto& member : tree->members) {
    if (!process::IsAlive(member)) continue;
    auto threads = process::ReadThreads(member.id.pid);
    if (!threads) continue;
    for (const pid_t thread : *threads) {
      auto name = ReadFile(fmt::format("/proc/{}/task/{}/comm", member.id.pid.value, thread), 64);
      if (name && name->starts_with(kAgentThreads)) found.push_back(thread);
    }
    auto restores = services.device->RestoreThread(member.id.pid);
    if (restores && *restores > 0 && *restores != member.id.pid.value) found.push_back(*restores);
  }
  return found;
}

void AwaitEither(int first, int second) {
  pollfd waits[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  (void)TEMP_FAILURE_RETRY(::poll(waits, std::size(waits), -1));
}

Error UnexpectedRequest() {
  Error error{Code::kInternal};
  error.message = "CRIU's plugin sent a request out of order";
  return error;
}

Error CriuFailed(const char* what) {
  Error error{Code::kAborted};
  error.message = fmt::format("CRIU could not {} the program", what);
  error.hint = "CRIU's log says why; the container runtime prints its path";
  return error;
}

}  // namespace stasis::operations
