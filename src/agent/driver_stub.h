// The interface between agent_hook_bench and its stub driver.
#pragma once

#include "abi/cuda/driver_functions.h"

namespace stasis::agent {

struct StubCalls {
  cuda::fn::cuLaunchKernel* launch;
  cuda::fn::cuMemsetD8Async* memset;
  cuda::fn::cuMemcpyHtoDAsync_v2* memcpy;
  cuda::fn::cuEventRecord* record;
  cuda::fn::cuStreamWaitEvent* wait_event;
  cuda::fn::cuStreamSynchronize* synchronize;
};

}  // namespace stasis::agent

extern "C" {
// Returns the stub's own functions, which no agent intercepts.
const stasis::agent::StubCalls* stasis_stub_calls();
// Sets whether calls that submit work also ring a doorbell.
void stasis_stub_ring(bool on);
}
