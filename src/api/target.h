// The TARGET of a command.
#pragma once

#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "checks/survey.h"

namespace stasis::api {

// `text` is a job's id or a process id. Returns kNotFound if there is no such job or process, and
// kFailedPrecondition if the job does not run.
Result<checks::Target> ParseTarget(const Paths& paths, const std::string& text);

}  // namespace stasis::api
