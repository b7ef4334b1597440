// The result of an operation in JSON, for `--json` (docs/json.md) and for the database of jobs.
#pragma once

#include <nlohmann/json.hpp>

#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

nlohmann::json ResultJson(const v1::OperationResult& result);

}  // namespace stasis::api
