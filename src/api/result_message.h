// Converts an operation's result from the struct of operations/ to the v1 message, which the
// daemon, the job database, and the text and JSON of the command line use.
#pragma once

#include "operations/result.h"
#include "plan/account.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

v1::PhaseReport ToMessage(const plan::PhaseReport& report);
v1::OperationResult ToMessage(const operations::OperationResult& result);

}  // namespace stasis::api
