// Converts a driver's result to an Error: the driver's own name and text as the message, a code
// from a table, and known causes of that result in that operation as the hint.
#pragma once

#include <string>

#include "base/result.h"
#include "device/cuda/helper_protocol.h"

namespace stasis::device::cuda {

// `name` and `text` are the driver's own for `cu_result`.
Error DriverError(wire::Op op, int cu_result, const std::string& name, const std::string& text);

// Returns true if the driver may fail at later requests for the same reason, so that a new process
// is safer. Returns false for results that concern only the request.
bool MayLast(int cu_result);

// Returns "lock", "checkpoint", … for messages.
std::string_view OpName(wire::Op op);

}  // namespace stasis::device::cuda
