#include "process/end.h"

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/file.h"

namespace stasis::process {

// Checks the signals pending for the process, not for a thread: exit and exec send SIGKILL to each
// of the other threads.
bool WasKilled(const ProcessId& id) {
  auto text = ReadFile("/proc/" + ToString(id.pid) + "/status");
  auto stat = ReadStat(id.pid);  // read second, to prove that the text belongs to this process
  if (!text || !stat || stat->id != id) return false;
  constexpr std::string_view kPending = "\nShdPnd:\t";
  const size_t at = text->find(kPending);
  if (at == std::string::npos) return false;
  const uint64_t pending = std::strtoull(text->c_str() + at + kPending.size(), nullptr, 16);
  return (pending & (1ULL << (SIGKILL - 1))) != 0;
}

Status WaitForEnd(const ProcessId& id, const Deadline& deadline) {
  auto pidfd = OpenPidfd(id);
  if (!pidfd && pidfd.error().code == Code::kNotFound) return {};  // already ended
  if (!pidfd) return Fail(std::move(pidfd).error());
  pollfd p{pidfd->get(), POLLIN, 0};
  int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout()));
  if (ready > 0) return {};
  return Fail(Code::kDeadlineExceeded, "process " + ToString(id.pid) + " did not end in time");
}

Status WaitUntilReaped(const ProcessId& id, const Deadline& deadline) {
  STASIS_TRY(WaitForEnd(id, deadline));
  for (;;) {
    auto stat = ReadStat(id.pid);
    if (!stat || stat->id != id) return {};
    if (deadline.passed()) {
      return Fail(Code::kDeadlineExceeded, "process " + ToString(id.pid) +
                                               " has ended, but its parent " +
                                               ToString(stat->parent) + " has not reaped it");
    }
    ::poll(nullptr, 0, 5);  // most kernels have no event for reaping
  }
}

}  // namespace stasis::process
