// The id of the current operation. The journal, the log and the environment of helpers
// (STASIS_OPERATION) contain it, so that one grep finds everything about an operation.
#pragma once

#include <string>

namespace stasis {

inline constexpr char kOperationVariable[] = "STASIS_OPERATION";

// Returns 16 random hexadecimal digits.
std::string NewOperationId();

// Adopts the id that the parent process chose. Returns false if `id` does not have the form of
// NewOperationId(). Call it before other threads start.
bool SetOperationId(const std::string& id);
// Returns the id; generates one on the first call if none was set.
const std::string& OperationId();

}  // namespace stasis
