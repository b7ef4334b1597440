// Converts jobs and their checkpoints to v1 messages.
#pragma once

#include "api/gpu_usage.h"
#include "jobs/job.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Leaves `exists` and `account` unset.
v1::Checkpoint ToMessage(const jobs::Checkpoint& checkpoint);
v1::Job ToMessage(const jobs::Job& job, const GpuUsage& gpu);

}  // namespace stasis::api
