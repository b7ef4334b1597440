// The checks before a dump, except those of GPU memory (SharedSuspend::Create): one list, which a
// dump runs up to the first refusal and `stasis check` to its end.
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
};

// With `refused`, stores every refusal there and returns what could be found out.
Result<DumpFacts> CheckBeforeDump(gpu_state::Services& services, criu::Criu& criu,
                                  const Survey& survey, const criu::Options& options,
                                  bool leave_running = false,
                                  std::vector<Refused>* refused = nullptr);

// Checks that the GPU's data fits into the store, which may not exist yet. The bytes that movers
// carry do not count if an earlier image of the job may have them: how many must be written is
// known only during the dump, which fails if the disk is full.
Status CheckImageSpace(const gpu_state::Services& services, const Survey& survey,
                       const std::string& store, bool full, uint64_t carried_bytes);

}  // namespace stasis::checks
