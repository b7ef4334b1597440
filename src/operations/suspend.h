// Suspend: the program gives up its GPU and stays in memory.
#pragma once

#include "checks/survey.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"

namespace stasis::operations {

Result<OperationResult> Suspend(Session& session, const checks::Target& target,
                                const OperationOptions& options);

// kUnimplemented if no process of the target uses a GPU.
Status RequireDeviceProcess(const checks::Survey& survey);

}  // namespace stasis::operations
