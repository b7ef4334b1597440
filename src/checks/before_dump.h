// The checks before a dump, in one list. A dump stops at the first refusal; `stasis check` runs the
// whole list. SharedSuspend::Create() checks GPU memory.
#pragma once

#include <string>
#include <vector>

#include "checks/survey.h"
#include "criu/criu.h"
#include "criu/options.h"
#include "criu/stdio.h"
#include "gpu_state/services.h"

namespace stasis::checks {

// Results of the checks that the dump needs.
struct DumpFacts {
  std::string criu_path;
  std::string criu_version;
  bool in_own_pidns = false;  // the program is in its job's pid namespace
  criu::StdioPlan stdio;
  // A program of HIP: the folder of CRIU's plugin, and the GPUs of this machine
  // (device/hip/criu_plugin.h). Otherwise empty.
  std::string criu_plugins;
  std::string gpu_topology;
};

// Returns the first refusal. With `refused`, appends every refusal to that list instead, and
// returns the facts that the other checks found.
Result<DumpFacts> CheckBeforeDump(gpu_state::Services& services, criu::Criu& criu,
                                  const Survey& survey, const criu::Options& options,
                                  bool leave_running = false,
                                  std::vector<Refused>* refused = nullptr);

// Checks that the GPU data fits into the store, whose folder may not exist yet. `carried_bytes` is
// the part that movers carry. If the store has an earlier image of the job and `full` is not set,
// this part is not counted: the earlier image may already contain many of its blocks, and their
// number is known only when the dump writes. If the disk becomes full then, the dump fails.
Status CheckImageSpace(const gpu_state::Services& services, const Survey& survey,
                       const std::string& store, bool full, uint64_t carried_bytes);

}  // namespace stasis::checks
