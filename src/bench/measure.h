// The measurements of `stasis bench`: one workload on one GPU, suspended and resumed repeatedly by
// the shared path and by the driver alone, in one run. report.h evaluates them.
//
// As in the daemon, the movers, arenas and the device helper stay between operations of the shared
// path. All processes are stopped and all memory is freed at the end, even after an error.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "config/settings.h"
#include "dataplane/mover_client.h"
#include "device/device_control.h"
#include "operations/result.h"

namespace stasis::bench {

struct MeasureOptions {
  device::Gpu gpu;
  uint64_t size_bytes = 0;
  std::vector<uint64_t> allocation_bytes;  // the shared path is measured with each size
  int rounds = 7;                          // warm rounds, and rounds of the bare context
  int driver_rounds = 2;                   // 0: do not measure the driver's own path
  bool huge_pages = false;  // also measure the driver's own path with `madvise` and `always`
  bool ignore_memory = false;
  config::Settings settings;
  std::string stasis_version;
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

// One suspend or resume as its caller sees it. The time includes the survey of the target before
// the plan.
struct Sample {
  double seconds = 0;
  operations::OperationResult result;
};

struct Round {
  Sample suspend, resume;
  // GPU memory in use while the program is suspended, in excess of that used before the start.
  uint64_t held_bytes = 0;
};

struct SharedRun {
  uint64_t allocation_bytes = 0;
  uint64_t allocations = 0;
  Round cold;  // the first round: no mover, no arena
  std::vector<Round> warm;
  // Only in the first run: rounds with the contexts' default stack limits (agent/cuda/floor.h).
  std::vector<Round> stacks_kept;
};

struct DriverRun {
  std::string huge_pages;  // the setting during the measurement
  std::vector<Round> rounds;
};

struct Measurements {
  device::Gpu gpu;  // before the start
  device::DriverInfo driver;
  std::string huge_pages;
  uint64_t size_bytes = 0;
  uint64_t arena_reserved_bytes = 0;  // reserved in advance, which makes the cold round faster
  std::vector<SharedRun> shared;
  std::vector<DriverRun> driver_alone;
  std::vector<Round> control;  // a context without memory, by the driver alone
  dataplane::WireSpeed wire;
  dataplane::HashingSpeed hashing;
  std::string why_no_hashing;  // why blocks cannot be hashed on the GPU; then `hashing` is zero
  double total_s = 0;
};

// Runs all measurements. Before it starts anything, rejects sizes that the GPU or the machine
// cannot hold.
Result<Measurements> Measure(const Paths& paths, const MeasureOptions& options);

}  // namespace stasis::bench
