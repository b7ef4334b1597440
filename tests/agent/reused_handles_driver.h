// The interface between agent_reused_handles and its driver.
#pragma once

struct ReusedHandlesDriver {
  // Called once after a handle or address was freed, before the freeing call returns. From then on
  // the driver returns the same value again.
  void (*after_return)() = nullptr;
  // The number of waits for a context.
  int synchronized = 0;
  // Whether cuMemPoolDestroy fails.
  bool pools_stay = false;
};

extern "C" ReusedHandlesDriver* TheReusedHandlesDriver();

// The address that cuMemAlloc returns.
constexpr unsigned long long kPlainAddress = 0x10000000;
