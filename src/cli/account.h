// Formats the account of an operation: each phase with its time, bytes and rate.
#pragma once

#include <string>

#include "stasis/v1/stasis.pb.h"

namespace stasis::cli {

std::string AccountText(const v1::OperationResult& result);

}  // namespace stasis::cli
