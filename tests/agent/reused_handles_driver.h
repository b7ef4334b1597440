// What agent_reused_handles asks of its driver.
#pragma once

struct ReusedHandlesDriver {
  // Called once, when a handle or an address was given back, before the call that gave it back
  // returns: the driver gives the same one out again.
  void (*after_return)() = nullptr;
  // How often a context was waited for.
  int synchronized = 0;
  // Whether cuMemPoolDestroy fails.
  bool pools_stay = false;
};

extern "C" ReusedHandlesDriver* TheReusedHandlesDriver();

// The address that the driver itself gives out.
constexpr unsigned long long kPlainAddress = 0x10000000;
