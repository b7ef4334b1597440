// Host memory that is ready for the next suspends of a user's jobs, while they run.
#pragma once

#include <string>

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// ReadyArenas (methods.h); idle movers that have the memory registered stay for `mover_idle_s`.
Result<v1::ReadyArenasResponse> MakeReady(Call& call, const v1::ReadyArenasRequest& request,
                                          double mover_idle_s);
// Keeps the movers of these needs from ending as idle, or starts them again, and lets them register
// what is ready.
Status KeepMovers(Call& call, const v1::ReadyArenasRequest& request, double mover_idle_s);
// Returns true if so little memory is free that MakeReady should give some back (IsScarce of
// dataplane/ready_plan.h).
Result<bool> IsReadyMemoryScarce(Call& call, const v1::ReadyArenasRequest& request);

// Keeps memory ready for the next suspends of one job without a daemon, until the job ends. With
// `wait` also while there is no such job, before it is created or after it was deleted, or it does
// not run.
Status KeepReady(Call& call, const std::string& job, bool wait);

}  // namespace stasis::api
