// The result of an operation as `--json` prints it: docs/json.md. The database keeps it too.
#pragma once

#include <nlohmann/json.hpp>

#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

nlohmann::json ResultJson(const v1::OperationResult& result);

}  // namespace stasis::api
