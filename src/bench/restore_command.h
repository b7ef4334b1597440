// `stasis bench --restore`.
#pragma once

#include "cli/verb.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::bench {

// Measures, and prints the result.
Status RunRestoreBench(cli::Globals& globals, const v1::BenchRequest& request);

}  // namespace stasis::bench
