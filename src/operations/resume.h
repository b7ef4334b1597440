// Resume: returns its GPU state to a suspended program.
#pragma once

#include <string>

#include "checks/survey.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"

namespace stasis::operations {

struct ResumeOptions {
  std::string gpu_map;       // "OLD=NEW,...", or "auto"
  std::string granted = {};  // the GPUs that the program may use now; empty: all
};
Result<OperationResult> Resume(Session& session, const checks::Target& target,
                               const ResumeOptions& resume, const OperationOptions& options);

}  // namespace stasis::operations
