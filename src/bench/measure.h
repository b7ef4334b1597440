// What `stasis bench` does: one workload on one GPU, suspended and resumed again and again, by the
// shared path and by the driver alone, in one run. It only measures; report.h makes sense of it.
//
// For the shared path it is what a daemon will be: the movers, the arenas and the device helper
// stay from one operation to the next. Whatever it started is ended and whatever it allocated is
// given back, also when it fails.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/operations.h"

namespace stasis::bench {

struct MeasureOptions {
  device::Gpu gpu;
  uint64_t size_bytes = 0;
  std::vector<uint64_t> allocation_bytes;  // the shared path is measured with each
  int rounds = 7;                          // warm ones, and those of the control alone
  int driver_rounds = 2;                   // 0: the driver's own path is not measured
  bool huge_pages = false;                 // the driver's own path with `madvise` and with `always`
  bool ignore_memory = false;
  config::Settings settings;
  std::string stasis_version;
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

// One suspend or resume as its caller saw it: with the look at the target before the plan.
struct Sample {
  double seconds = 0;
  coordinator::OperationResult result;
};

struct Round {
  Sample suspend, resume;
  // GPU memory in use while the program was suspended that was free before anything was started.
  uint64_t held_bytes = 0;
};

struct SharedRun {
  uint64_t allocation_bytes = 0;
  uint64_t allocations = 0;
  Round cold;  // the first: no mover, no arena
  std::vector<Round> warm;
  // The first run only: with the contexts' stack limits left as they are (agent/cuda/floor.h).
  std::vector<Round> stacks_kept;
};

struct DriverRun {
  std::string huge_pages;  // the setting while it was measured
  std::vector<Round> rounds;
};

struct Measurements {
  device::Gpu gpu;  // as it was before
  device::DriverInfo driver;
  std::string huge_pages;
  uint64_t size_bytes = 0;
  uint64_t arena_reserved_bytes = 0;  // memory that was ready beforehand: cold is less cold
  std::vector<SharedRun> shared;
  std::vector<DriverRun> driver_alone;
  std::vector<Round> control;  // a context without memory, by the driver alone
  dataplane::WireSpeed wire;
  dataplane::NamingSpeed naming;
  std::string why_no_naming;  // naming is zero then
  double total_s = 0;
};

// Refuses what the GPU or the machine cannot hold before anything is started.
Result<Measurements> Measure(const Paths& paths, const MeasureOptions& options);

}  // namespace stasis::bench
