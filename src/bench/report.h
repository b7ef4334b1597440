// The results of the measurements: medians, the time of each phase, and the important ratios, each
// with its target value on a GPU.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace stasis::bench {

struct Stats {
  double median = 0, min = 0, max = 0;
};
// Returns zeros for no values. The median of an even number of values is the mean of the two in the
// middle.
Stats StatsOf(std::vector<double> values);

// The times of one phase in all rounds.
struct PhaseStats {
  std::string name;
  Stats seconds;
  double start_s = 0;  // median, relative to the start of the plan
  uint64_t bytes = 0;
  int depth = 0;
  bool parallel = false;
};

// One part of the movers' work in a suspend.
struct PartStats {
  std::string name;  // machine-readable: "hashing_s"
  std::string what;  // human-readable
  Stats seconds;
};

// All suspends, or all resumes, of several rounds.
struct OperationStats {
  Stats seconds;                   // as the caller saw it
  std::vector<PhaseStats> phases;  // the first is "look", the time before the plan
  std::vector<PartStats> parts;    // empty for a resume and for the driver alone
  // Lock and checkpoint, or restore and unlock: only the driver's own calls.
  Stats driver_calls;
};
OperationStats SuspendStats(const std::vector<Round>& rounds);
OperationStats ResumeStats(const std::vector<Round>& rounds);

struct SharedStats {
  uint64_t allocation_bytes = 0;
  uint64_t allocations = 0;
  OperationStats cold_suspend, cold_resume, suspend, resume;
  // The rounds with the contexts' default stack limits. Contain no phases if they were not
  // measured.
  OperationStats stacks_kept_suspend, stacks_kept_resume;
  Stats held_bytes;
};
struct DriverStats {
  std::string huge_pages;
  OperationStats suspend, resume;
};

struct Ratio {
  std::string name;  // machine-readable: "suspend_over_limit"
  std::string what;  // human-readable
  double value = 0;
  double bar = 0;
  bool at_most = true;  // otherwise the value must be at least `bar`
  bool met() const { return at_most ? value <= bar : value >= bar; }
};

struct Report {
  std::vector<SharedStats> shared;
  std::vector<DriverStats> driver_alone;
  OperationStats control_suspend, control_resume;
  // The lower bound: the bytes divided by the measured bus speed, or the driver's time for a bare
  // context, whichever is larger.
  double suspend_limit_s = 0, resume_limit_s = 0;
  std::vector<Ratio> ratios;
};
Report MakeReport(const Measurements& found);

}  // namespace stasis::bench
