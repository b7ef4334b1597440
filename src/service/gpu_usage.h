// What the driver says of the GPU memory of jobs, for `ps`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/paths.h"
#include "config/settings.h"
#include "jobs/job.h"

namespace stasis::service {

struct GpuUsage {
  bool uses_gpu = false;
  bool suspended = false;        // the memory of all of its GPU processes is away
  bool failed = false;           // the driver says so of one of them: it can only be ended
  bool context_kept = false;     // of one of them at least, which is suspended
  uint64_t gpu_bytes = 0;        // on the GPU now
  uint64_t suspended_bytes = 0;  // given up, as far as it was remembered
};

struct GpuUsages {
  std::map<std::string, GpuUsage> by_job;
  std::string problem;  // why something is missing
};
// Starts the driver's helper only when a process of a running job has the driver's library loaded.
GpuUsages LookAtGpus(const Paths& paths, const config::Settings& settings,
                     const std::vector<jobs::Job>& jobs);

}  // namespace stasis::service
