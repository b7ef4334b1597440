// What agent_hook_bench asks of its stub of a driver.
#pragma once

#include "device/cuda/driver_functions.h"

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
// The stub's own functions, past any agent.
const stasis::agent::StubCalls* stasis_stub_calls();
// Whether what submits work also rings a doorbell.
void stasis_stub_ring(bool on);
}
