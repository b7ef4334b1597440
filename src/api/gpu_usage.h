// Reads the GPU memory of jobs and containers from the driver, for `ps`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "config/settings.h"
#include "jobs/job.h"
#include "process/tree.h"

namespace stasis::api {

struct GpuUsage {
  bool uses_gpu = false;
  bool suspended = false;        // all of its GPU processes are suspended
  bool failed = false;           // the driver reports a process as failed; it can only be killed
  bool context_kept = false;     // at least one suspended process kept its context
  uint64_t gpu_bytes = 0;        // on the GPU now
  uint64_t suspended_bytes = 0;  // data that suspends moved away, as recorded
  uint64_t spilled_bytes = 0;    // the part of suspended_bytes that is in files on disk
};

struct GpuUsages {
  std::map<std::string, GpuUsage> by_name;
  std::string problem;  // why figures are missing
};
// Starts the driver's helper only if a process has loaded the driver's library. `roots` maps
// the name of each tree to its first process.
GpuUsages ReadGpuUsages(const Paths& paths, const config::Settings& settings,
                        const std::map<std::string, process::HostPid>& roots);
// Returns the usage of running jobs by their ids.
GpuUsages ReadGpuUsages(const Paths& paths, const config::Settings& settings,
                        const std::vector<jobs::Job>& jobs);

// GPU data in files on disk, by process. Read once, and only if it is asked for.
class SpilledData {
 public:
  // `paths` must outlive the object.
  explicit SpilledData(const Paths& paths) : paths_(paths) {}
  uint64_t Of(const process::ProcessId& id);

 private:
  void Read();

  const Paths& paths_;
  std::optional<std::map<process::ProcessId, uint64_t>> bytes_;
};

// Returns true if a process of the tree has loaded the driver's library.
bool UsesGpuDriver(const process::ProcessTree& tree);

}  // namespace stasis::api
