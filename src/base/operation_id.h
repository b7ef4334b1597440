// The id of the operation that this process does: in its journal, in what it logs, and in the
// environment of the helpers that it starts (STASIS_OPERATION), so that one grep finds all of it.
#pragma once

#include <string>

namespace stasis {

inline constexpr char kOperationVariable[] = "STASIS_OPERATION";

// 16 hexadecimal digits.
std::string NewOperationId();

// Before any thread is started: it was chosen by who started us. Not one of NewOperationId():
// false.
bool SetOperationId(const std::string& id);
// Made up when nobody has chosen it.
const std::string& OperationId();

}  // namespace stasis
