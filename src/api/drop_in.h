// Runs single steps of the driver like NVIDIA's cuda-checkpoint, for Stasis's replacement of that
// program. docs/cuda-checkpoint.md describes the differences from `stasis gpu`.
#pragma once

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// The target may be a thread: the driver accepts one, and CRIU's plugin names the restore thread.
// `gpu_map` is in the driver's own format, OLD=NEW by UUID. Not a method of the service.
Result<v1::GpuStepResponse> DropInStep(Call& call, const v1::GpuStepRequest& request);

}  // namespace stasis::api
