#include "device/cuda/helper_protocol.h"

#include "abi/cuda/driver_abi.h"
#include "ipc/message.h"

namespace stasis::device::cuda::wire {
namespace {

using ipc::IsTerminated;

bool ActsOnProcess(Op op) { return op > Op::kGpus && op < Op::kEnd; }

bool Known(Op op) { return op >= Op::kHello && op <= Op::kLast; }

}  // namespace

const char* WhyInvalid(const Request& r, size_t size) {
  if (const char* why = ipc::WhyNoMessage(r, size, kMagic, kVersion)) return why;
  if (r.id == 0) return "a request without an id";
  if (!Known(r.op)) return "an unknown operation";
  if (r.pid < 0 || (ActsOnProcess(r.op) && r.pid == 0)) return "an invalid process id";
  if (r.pid != 0 && !ActsOnProcess(r.op) && r.op != Op::kGpus) {
    return "a process id where none belongs";
  }
  if (r.timeout_ms > kMaxTimeoutMs) return "a timeout that is too long";
  if (r.timeout_ms != 0 && r.op != Op::kLock) return "a timeout where none belongs";
  if (r.pair_count > kMaxGpus) return "too many GPU pairs";
  if (r.pair_count != 0 && r.op != Op::kRestore) return "GPU pairs where none belong";
  return nullptr;
}

const char* WhyInvalid(const Reply& r, size_t size) {
  if (const char* why = ipc::WhyNoMessage(r, size, kMagic, kVersion)) return why;
  if (r.id == 0) return "a reply without an id";
  if (!Known(r.op)) return "a reply to an unknown operation";
  if (r.outcome > Outcome::kLast) return "an unknown outcome";
  if ((r.outcome == Outcome::kDriverError) != (r.cu_result != 0)) {
    return "an outcome that does not match the driver's result";
  }
  if (r.state < 0 || r.state > stasis::cuda::CU_PROCESS_STATE_FAILED) return "an unknown state";
  if (r.tid < 0) return "an invalid thread id";
  if (r.gpu_count > kMaxGpus) return "too many GPUs";
  bool terminated = IsTerminated(r.cu_name) && IsTerminated(r.cu_text) &&
                    IsTerminated(r.driver.kind) && IsTerminated(r.driver.version) &&
                    IsTerminated(r.driver.why_not);
  for (uint32_t i = 0; i < r.gpu_count; ++i) terminated &= IsTerminated(r.gpus[i].name);
  if (!terminated) return "an unterminated text";
  for (uint32_t i = 0; i < r.gpu_count; ++i) {
    if (r.gpus[i].persistence > Persistence::kLast) return "an unknown persistence mode";
  }
  return nullptr;
}

}  // namespace stasis::device::cuda::wire
