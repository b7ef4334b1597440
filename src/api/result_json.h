// Converts the result of an operation to JSON, for `--json` (docs/json.md) and the database of
// jobs.
#pragma once

#include <nlohmann/json.hpp>

#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

nlohmann::json ResultJson(const v1::OperationResult& result);

}  // namespace stasis::api
