// What the measurements say: medians, the time of each phase, and the ratios that matter, each with
// the bar that it is to pass on a GPU.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace stasis::bench {

struct Stats {
  double median = 0, min = 0, max = 0;
};
// Zeros of nothing; the median of an even number is the mean of the two in the middle.
Stats StatsOf(std::vector<double> values);

// One phase over all rounds.
struct PhaseStats {
  std::string name;
  Stats seconds;
  double start_s = 0;  // median, after the begin of the plan
  uint64_t bytes = 0;
  int depth = 0;
  bool parallel = false;
};

// Of what the movers did within a suspend.
struct PartStats {
  std::string name;  // for programs: "naming_s"
  std::string what;  // for people
  Stats seconds;
};

// One direction of some rounds.
struct OperationStats {
  Stats seconds;                   // as the caller saw it
  std::vector<PhaseStats> phases;  // "look" is the first: what came before the plan
  std::vector<PartStats> parts;    // none of a resume, or of the driver alone
  // Lock and checkpoint, or restore and unlock: the driver's own calls and nothing of ours.
  Stats driver_calls;
};
OperationStats SuspendStats(const std::vector<Round>& rounds);
OperationStats ResumeStats(const std::vector<Round>& rounds);

struct SharedStats {
  uint64_t allocation_bytes = 0;
  uint64_t allocations = 0;
  OperationStats cold_suspend, cold_resume, suspend, resume;
  // With the contexts' stack limits left as they are; no phases where that was not measured.
  OperationStats stacks_kept_suspend, stacks_kept_resume;
  Stats held_bytes;
};
struct DriverStats {
  std::string huge_pages;
  OperationStats suspend, resume;
};

struct Ratio {
  std::string name;  // for programs: "suspend_over_limit"
  std::string what;  // for people
  double value = 0;
  double bar = 0;
  bool at_most = true;  // else at least
  bool met() const { return at_most ? value <= bar : value >= bar; }
};

struct Report {
  std::vector<SharedStats> shared;
  std::vector<DriverStats> driver_alone;
  OperationStats control_suspend, control_resume;
  // The least time: the bytes over the measured wire, or the driver's work for a bare context,
  // whichever is more.
  double suspend_limit_s = 0, resume_limit_s = 0;
  std::vector<Ratio> ratios;
};
Report MakeReport(const Measurements& found);

}  // namespace stasis::bench
