// Converts a driver's result to an Error: the driver's own name and text as the message, a code
// from a table, and known causes of that result in that operation as the hint.
#pragma once

#include <string>

#include "base/result.h"
#include "device/cuda/helper_protocol.h"

namespace stasis::device::cuda {

// Returns kUnknown for a result without a row.
Code CodeOf(int cu_result);

// `name` and `text` are the driver's own for `cu_result`.
Error DriverError(wire::Op op, int cu_result, const std::string& name, const std::string& text);

// Returns "lock", "checkpoint", … for messages.
std::string_view OpName(wire::Op op);

}  // namespace stasis::device::cuda
