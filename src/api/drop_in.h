// Runs single steps of the driver like NVIDIA's cuda-checkpoint, for Stasis's replacement of that
// program. docs/cuda-checkpoint.md describes the differences from `stasis gpu`.
#pragma once

#include <functional>
#include <string>

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Makes the daemon leave a program that shares GPUs alone until this process ends the hold
// (share_hold.h).
using HoldProgram = std::function<Status(const std::string& target, const std::string& method)>;

// The target may be a thread: the driver accepts one, and CRIU's plugin names the restore thread.
// `gpu_map` is in the driver's own format, OLD=NEW by UUID. Calls `hold` before a step that changes
// the process. Not a method of the service.
Result<v1::GpuStepResponse> DropInStep(Call& call, const v1::GpuStepRequest& request,
                                       const HoldProgram& hold);

}  // namespace stasis::api
