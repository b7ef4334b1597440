// Runs `stasis bench --remote`.
#pragma once

#include "base/result.h"
#include "cli/verb.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::bench {

// Measures the repository that the request names, and prints the report.
Status RunRemoteBench(const cli::Globals& globals, const v1::BenchRequest& request);

}  // namespace stasis::bench
