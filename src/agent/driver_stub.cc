// A libcuda.so.1 with a few functions that do nothing, so that agent_hook_bench measures only the
// path to the driver.
#include "agent/driver_stub.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

using namespace stasis::cuda;  // NOLINT

namespace stasis::agent {
namespace {

bool g_rings = false;

// Simulates a GPU's doorbell by a non-temporal store, for which only the next barrier of the same
// thread waits.
inline CUresult Submitted() {
  alignas(64) static thread_local int doorbell[16];
  if (!g_rings) return CUDA_SUCCESS;
#if defined(__x86_64__)
  _mm_stream_si32(doorbell, 1);
#else
  asm volatile("stnp %w1, %w1, [%0]" : : "r"(doorbell), "r"(1) : "memory");
#endif
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace stasis::agent

using stasis::agent::Submitted;

#define STASIS_EXPORT extern "C" __attribute__((visibility("default")))

STASIS_EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, unsigned, CUstream, void**, void**) {
  return Submitted();
}
STASIS_EXPORT CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) {
  return Submitted();
}
STASIS_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream) {
  return Submitted();
}
STASIS_EXPORT CUresult cuEventRecord(CUevent, CUstream) { return Submitted(); }
STASIS_EXPORT CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return Submitted(); }
STASIS_EXPORT CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }

STASIS_EXPORT const stasis::agent::StubCalls* stasis_stub_calls() {
  // Linked with -Bsymbolic, so these are the stub's own functions even if an agent is preloaded.
  static const stasis::agent::StubCalls kCalls = {
      cuLaunchKernel, cuMemsetD8Async,   cuMemcpyHtoDAsync_v2,
      cuEventRecord,  cuStreamWaitEvent, cuStreamSynchronize,
  };
  return &kCalls;
}

STASIS_EXPORT void stasis_stub_ring(bool on) { stasis::agent::g_rings = on; }
