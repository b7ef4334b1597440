// Between what the rooms below speak of and the messages of proto/stasis/v1/stasis.proto, both
// ways. Text that is not UTF-8 has a '?' for each such byte: a message could not be read otherwise.
#pragma once

#include <string>

#include "base/result.h"
#include "coordinator/services.h"
#include "jobs/job.h"
#include "service/gpu_usage.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::service {

std::string Utf8(std::string text);

// At most a few KiB: it travels in a header.
v1::Error ToMessage(const Error& error);
Error FromMessage(const v1::Error& message);

v1::PhaseReport ToMessage(const coordinator::PhaseReport& report);
coordinator::PhaseReport FromMessage(const v1::PhaseReport& message);
v1::OperationResult ToMessage(const coordinator::OperationResult& result);
coordinator::OperationResult FromMessage(const v1::OperationResult& message);

// Without the account, and without a look at the disk.
v1::Checkpoint ToMessage(const jobs::Checkpoint& checkpoint);
v1::Job ToMessage(const jobs::Job& job, const GpuUsage& gpu);

}  // namespace stasis::service
