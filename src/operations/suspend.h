// Suspend: moves a program's GPU state to host memory, so that other programs can use the GPU.
#pragma once

#include "checks/survey.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"

namespace stasis::operations {

Result<OperationResult> Suspend(Session& session, const checks::Target& target,
                                const OperationOptions& options);

// Returns kUnimplemented if no process of the target uses a GPU.
Status RequireDeviceProcess(const checks::Survey& survey);

}  // namespace stasis::operations
