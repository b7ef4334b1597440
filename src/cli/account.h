// The account that a dump or restore ends with: each phase with its time, bytes and rate.
#pragma once

#include <string>

#include "coordinator/services.h"

namespace stasis::cli {

std::string AccountText(const coordinator::OperationResult& result);

}  // namespace stasis::cli
