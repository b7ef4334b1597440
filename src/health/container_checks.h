// Reports observations about container runtimes as findings.
#pragma once

#include "containers/inspect.h"
#include "health/findings.h"

namespace stasis::health {

Finding FindingOf(const containers::Observation& seen);

}  // namespace stasis::health
