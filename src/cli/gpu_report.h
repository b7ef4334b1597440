// `stasis check --gpu VENDOR --report FILE`.
#pragma once

#include <string>

#include "cli/verb.h"

namespace stasis::cli {

// Runs the conformance checks (conformance/kit.h), writes the report to the file, and prints a
// summary. Returns 0 if no step failed, otherwise kUnable.
Outcome ReportGpu(const Globals& globals, const std::string& vendor, const std::string& file);

}  // namespace stasis::cli
