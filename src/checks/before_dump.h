// What a dump asks before it touches anything, but for the GPU memory (SharedSuspend::Look): one
// list, which a dump walks up to the first refusal and `check` to its end.
#pragma once

#include <string>
#include <vector>

#include "checks/survey.h"
#include "criu/options.h"
#include "criu/stdio.h"
#include "gpu_state/services.h"

namespace stasis::checks {

struct BeforeDump {
  std::string criu_path;
  std::string criu_version;
  bool in_own_pidns = false;  // it lives in its job's own
  criu::StdioPlan stdio;
};

// With `refused`, every refusal is put there and the answer is what could be found out.
Result<BeforeDump> AskBeforeDump(gpu_state::Services& services, const Survey& survey,
                                 const criu::Options& options, bool leave_running = false,
                                 std::vector<Refused>* refused = nullptr);

// At least the GPU's data must fit into the store, which may not exist yet. What the data plane
// carries need not, where an earlier image of the job may have it: how much of it has to be written
// is seen only when it is, and a disk that is too full is found out by then.
Status CheckImageSpace(const gpu_state::Services& services, const Survey& survey,
                       const std::string& store, bool full, uint64_t carried_bytes);

}  // namespace stasis::checks
