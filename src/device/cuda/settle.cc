// Determines the state of a process after a helper was lost.
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

// Returns the state after a successful operation.
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

// Returns the CPU time of a thread in clock ticks; 0 if it cannot be read.
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

// A driver thread inside the process performs the operation, and continues when the helper is gone.
// The driver sends no event when the operation ends, and until then it reports the old state (a
// checkpoint in progress reads as locked). Settle therefore polls at growing intervals, until the
// state is the operation's goal or a final one, or until neither the state nor the CPU time of that
// thread has changed for a quarter of the timeout.
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
