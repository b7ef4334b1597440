#include "process/end.h"

#include <poll.h>

#include <cerrno>

namespace stasis::process {

Status WaitForEnd(const ProcessId& id, const Deadline& deadline) {
  auto pidfd = OpenPidfd(id);
  if (!pidfd) return {};  // gone
  pollfd p{pidfd->get(), POLLIN, 0};
  int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout()));
  if (ready > 0) return {};
  return Fail(Code::kDeadlineExceeded, "process " + ToString(id.pid) + " does not end");
}

Status WaitUntilReaped(const ProcessId& id, const Deadline& deadline) {
  STASIS_TRY(WaitForEnd(id, deadline));
  for (;;) {
    auto stat = ReadStat(id.pid);
    if (!stat || stat->id != id) return {};
    if (deadline.passed()) {
      return Fail(Code::kDeadlineExceeded, "process " + ToString(id.pid) +
                                               " has ended and waits for its parent " +
                                               ToString(stat->parent) + " to notice");
    }
    ::poll(nullptr, 0, 5);  // most kernels have no event for it
  }
}

}  // namespace stasis::process
