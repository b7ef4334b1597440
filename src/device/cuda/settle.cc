// How it is found out what a lost helper has left behind.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "device/cuda/cuda_control.h"

namespace stasis::device::cuda {
namespace {

using process::HostPid;
using wire::Op;
using Milliseconds = std::chrono::milliseconds;

// Where an operation leads when it succeeds.
std::optional<ProcessState> Goal(Op op) {
  switch (op) {
    case Op::kLock:
    case Op::kRestore:
      return ProcessState::kLocked;
    case Op::kCheckpoint:
      return ProcessState::kCheckpointed;
    case Op::kUnlock:
      return ProcessState::kRunning;
    default:
      return std::nullopt;
  }
}

// CPU time that a thread has used, in clock ticks; 0 when it cannot be read.
uint64_t CpuTicks(HostPid pid, pid_t tid) {
  auto text = ReadFile(fmt::format("/proc/{}/task/{}/stat", pid.value, tid));
  if (!text) return 0;
  std::istringstream fields(text->substr(text->rfind(')') + 1));
  std::string ignored;
  for (int i = 3; i <= 13; ++i) fields >> ignored;  // state … cmajflt, by proc(5)
  uint64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

}  // namespace

// The work of an operation is done by a thread of the driver's inside the process, and goes on when
// the helper that asked for it is gone. There is no event for its end, and meanwhile the state is
// that of before (a checkpoint under way reads as locked). So it is asked again, at growing
// intervals, until the state is the operation's goal or a final one, or until neither the state nor
// that thread has moved for a quarter of the time that it may take at most.
Result<ProcessState> CudaControl::Settle(Op op, HostPid pid) {
  const Deadline limit = Deadline::In(options_.settle_timeout);
  const Milliseconds quiet = options_.settle_timeout / 4;
  Result<ProcessState> last = AskState(pid, limit);
  pid_t worker = 0;
  if (last) {
    wire::Request request;
    request.op = Op::kRestoreThread;
    request.pid = pid.value;
    auto reply = Ask(request, limit);
    if (reply && reply->outcome == wire::Outcome::kDone) worker = reply->tid;
  }
  uint64_t ticks = CpuTicks(pid, worker);
  Deadline unchanged_until = Deadline::In(quiet);
  for (Milliseconds pause{10};; pause = std::min(pause * 2, Milliseconds(250))) {
    const bool final = !last || Goal(op) == *last || *last == ProcessState::kFailed ||
                       *last == ProcessState::kNone;
    if (final || unchanged_until.passed() || limit.passed()) return last;
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
    auto now = AskState(pid, limit);
    const uint64_t ticks_now = CpuTicks(pid, worker);
    if (!now || *now != *last || ticks_now != ticks) unchanged_until = Deadline::In(quiet);
    ticks = ticks_now;
    last = std::move(now);
  }
}

}  // namespace stasis::device::cuda
