// A driver's answer as an Error: its own name and words as the message, a code from a table, and
// what is known about that answer in that place as the hint.
#pragma once

#include <string>

#include "base/result.h"
#include "device/cuda/helper_protocol.h"

namespace stasis::device::cuda {

Error DriverError(wire::Op op, int cu_result, const std::string& name, const std::string& text);

// "lock", "checkpoint", … as in messages.
std::string_view OpName(wire::Op op);

}  // namespace stasis::device::cuda
