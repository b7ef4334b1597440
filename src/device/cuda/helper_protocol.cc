#include "device/cuda/helper_protocol.h"

#include "abi/cuda/driver_abi.h"

namespace stasis::device::cuda::wire {
namespace {

template <size_t n>
bool Ended(const char (&text)[n]) {
  return std::memchr(text, '\0', n) != nullptr;
}

bool ActsOnProcess(Op op) { return op != Op::kHello && op != Op::kGpus; }

bool Known(Op op) { return op >= Op::kHello && op <= Op::kLast; }

}  // namespace

const char* WhyInvalid(const Request& r, size_t size) {
  if (size != sizeof(Request)) return "a request of the wrong length";
  if (r.magic != kMagic) return "not a request";
  if (r.version != kVersion) return "a request of another version";
  if (r.id == 0) return "a request without an id";
  if (!Known(r.op)) return "an unknown operation";
  if (r.pid < 0 || (ActsOnProcess(r.op) && r.pid == 0)) return "an impossible process id";
  if (r.op == Op::kHello && r.pid != 0) return "a process id where none belongs";
  if (r.timeout_ms > kMaxTimeoutMs) return "a timeout too long";
  if (r.timeout_ms != 0 && r.op != Op::kLock) return "a timeout where none belongs";
  if (r.pair_count > kMaxGpus) return "too many GPU pairs";
  if (r.pair_count != 0 && r.op != Op::kRestore) return "GPU pairs where none belong";
  return nullptr;
}

const char* WhyInvalid(const Reply& r, size_t size) {
  if (size != sizeof(Reply)) return "a reply of the wrong length";
  if (r.magic != kMagic) return "not a reply";
  if (r.version != kVersion) return "a reply of another version";
  if (r.id == 0) return "a reply without an id";
  if (!Known(r.op)) return "a reply to an unknown operation";
  if (r.outcome > Outcome::kLast) return "an unknown outcome";
  if ((r.outcome == Outcome::kDriverError) != (r.cu_result != 0)) return "an outcome without cause";
  if (r.state < 0 || r.state > stasis::cuda::CU_PROCESS_STATE_FAILED) return "an unknown state";
  if (r.tid < 0) return "an impossible thread id";
  if (r.gpu_count > kMaxGpus) return "too many GPUs";
  bool ended = Ended(r.cu_name) && Ended(r.cu_text) && Ended(r.driver.kind) &&
               Ended(r.driver.version) && Ended(r.driver.why_not);
  for (uint32_t i = 0; i < r.gpu_count; ++i) ended &= Ended(r.gpus[i].name);
  if (!ended) return "a text without an end";
  for (uint32_t i = 0; i < r.gpu_count; ++i) {
    if (r.gpus[i].persistence > Persistence::kLast) return "an unknown persistence mode";
  }
  return nullptr;
}

}  // namespace stasis::device::cuda::wire
