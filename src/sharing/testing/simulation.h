// A simulated machine on which programs with random habits share GPUs under a policy. It checks
// after every event what the policy promises (policy.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sharing/policy.h"

namespace stasis::sharing::testing {

using Policy = std::function<Decision(const Table&)>;

enum class Habits {
  kMixed,   // busy and idle times, arrivals and exits, pins, suspend and resume by hand
  kAllWant  // all programs want their GPUs all the time
};

struct Trace {
  std::string violation;  // empty: none was found
  uint64_t swaps = 0;     // resumes
  uint64_t waits = 0;     // how often a program began to wait
  uint64_t refusals = 0;
  // The part of time in which programs moved from or to the worst GPU and none was awake on it.
  double lost = 0;
};

// Runs one trace. The same seed gives the same trace.
Trace Simulate(uint64_t seed, Habits habits, const Policy& policy);

}  // namespace stasis::sharing::testing
