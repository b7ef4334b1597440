// The account of an operation as `--json` prints it: docs/json.md. It is also what the database
// keeps.
#pragma once

#include <nlohmann/json.hpp>

#include "coordinator/services.h"

namespace stasis::service {

nlohmann::json AccountJson(const coordinator::OperationResult& result);

}  // namespace stasis::service
