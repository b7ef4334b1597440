// What a user means by a TARGET.
#pragma once

#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "coordinator/survey.h"

namespace stasis::service {

// A job's id or a process id, as cli.md tells them apart. kNotFound: there is none.
// kFailedPrecondition: the job does not run.
Result<coordinator::Target> ParseTarget(const Paths& paths, const std::string& text);

}  // namespace stasis::service
