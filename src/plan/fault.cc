#include "plan/fault.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string_view>

#include "process/proc.h"

namespace stasis::plan {
namespace {

constexpr std::string_view kKill = "kill=";
constexpr std::string_view kHold = "hold=";

Status KillOther(const std::string& text, const Deadline& deadline) {
  const pid_t pid = std::atoi(text.c_str());
  if (pid <= 1) return FailErrno(EINVAL, "STASIS_FAULT: " + text + " is not a process id");
  auto stat = process::ReadStat({pid});
  if (!stat) return {};
  ::kill(pid, SIGKILL);
  // A pidfd is not sufficient, because threads that CRIU traces exist until CRIU has waited for
  // them.
  while (process::IsAlive(stat->id) && !deadline.passed()) ::poll(nullptr, 0, 1);
  return {};
}

Status Strike(const std::string& phase, const std::string& how, const Deadline& deadline) {
  if (how == "fail") {
    return Fail(Code::kInternal, "a fault was injected into phase " + phase + " (STASIS_FAULT)");
  }
  if (how == "hang") {
    while (!deadline.passed()) ::poll(nullptr, 0, deadline.PollTimeout());
    return Fail(Code::kDeadlineExceeded,
                "phase " + phase + " hung until its deadline (STASIS_FAULT)");
  }
  if (how == "die") {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  if (how.starts_with(kHold)) {
    const std::string path = how.substr(kHold.size());
    while (::access(path.c_str(), F_OK) == 0 && !deadline.passed()) ::poll(nullptr, 0, 1);
    return {};
  }
  if (how.starts_with(kKill)) return KillOther(how.substr(kKill.size()), deadline);
  return FailErrno(EINVAL,
                   "STASIS_FAULT: " + how + " is not fail, hang, die, kill=PID or hold=PATH");
}

}  // namespace

Status InjectFault(const std::string& phase, FaultPoint point, const Deadline& deadline) {
  const char* spec = ::secure_getenv("STASIS_FAULT");
  if (spec == nullptr || *spec == '\0') return {};
  std::istringstream entries{std::string(spec)};
  for (std::string entry; std::getline(entries, entry, ',');) {
    size_t first = entry.find(':'), second = entry.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      return FailErrno(EINVAL, "STASIS_FAULT: " + entry + " is not PHASE:WHEN:HOW");
    }
    std::string when = entry.substr(first + 1, second - first - 1);
    if (when != "before" && when != "after") {
      return FailErrno(EINVAL, "STASIS_FAULT: " + when + " is neither before nor after");
    }
    if (entry.substr(0, first) != phase) continue;
    if ((when == "before") != (point == FaultPoint::kBefore)) continue;
    STASIS_TRY(Strike(phase, entry.substr(second + 1), deadline));
  }
  return {};
}

}  // namespace stasis::plan
