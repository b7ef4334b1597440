// Starts a program as a job.
#pragma once

#include <functional>

#include "api/call.h"
#include "base/result.h"
#include "jobs/shim_client.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// A function that changes the program's input and output before the program starts. May be empty.
using ConnectStdio = std::function<Status(jobs::StdioSpec&)>;

// Starts the job. Changes the directory and the environment of this process to those of the
// request.
Result<v1::RunResponse> StartJob(Call& call, const v1::RunRequest& request,
                                 const ConnectStdio& connect);

}  // namespace stasis::api
