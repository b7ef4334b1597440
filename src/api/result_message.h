// The only conversion of an operation's result: from the struct of operations/ to the v1 message,
// which everything above works with (the daemon, the database, the command line's text and JSON).
#pragma once

#include "operations/result.h"
#include "plan/account.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

v1::PhaseReport ToMessage(const plan::PhaseReport& report);
v1::OperationResult ToMessage(const operations::OperationResult& result);

}  // namespace stasis::api
