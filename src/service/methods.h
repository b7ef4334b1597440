// What each method of the service does (proto/stasis/v1/stasis.proto says what it means), with the
// rights of this process. Streams go to Call::emit; what is returned is the answer, or the last
// message of the stream.
//
// Requests are what a caller has typed, or sent: everything in them is checked here or below.
#pragma once

#include "base/result.h"
#include "service/call.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::service {

Result<v1::OperationEvent> Suspend(Call& call, const v1::SuspendRequest& request);
Result<v1::OperationEvent> Resume(Call& call, const v1::ResumeRequest& request);
Result<v1::OperationEvent> Dump(Call& call, const v1::DumpRequest& request);
Result<v1::OperationEvent> Restore(Call& call, const v1::RestoreRequest& request);
Result<v1::RecoverResponse> Recover(Call& call, const v1::RecoverRequest& request);

Result<v1::RunResponse> Run(Call& call, const v1::RunRequest& request);
Result<v1::ManageJobResponse> ManageJob(Call& call, const v1::ManageJobRequest& request);
Result<v1::ListJobsResponse> ListJobs(Call& call, const v1::ListJobsRequest& request);
Result<v1::Job> GetJob(Call& call, const v1::GetJobRequest& request);
Result<v1::Job> WaitJob(Call& call, const v1::WaitJobRequest& request);
Result<v1::KillJobResponse> KillJob(Call& call, const v1::KillJobRequest& request);
Result<v1::DeleteJobResponse> DeleteJob(Call& call, const v1::DeleteJobRequest& request);
Result<v1::ListCheckpointsResponse> ListCheckpoints(Call& call,
                                                    const v1::ListCheckpointsRequest& request);
// For a process of its own: it gives up the rights that are kept for CRIU.
Result<v1::ReadLogResponse> ReadLog(Call& call, const v1::ReadLogRequest& request);

// For the daemon's metrics alone; asks no driver, and nobody who could keep it waiting.
Result<v1::Usage> GetUsage(Call& call, const v1::UsageRequest& request);

// By its name, e.g. "Suspend", and with messages as bytes. kInvalidArgument: the request is none of
// that method's; kUnimplemented: there is no such method.
Result<std::string> Perform(Call& call, const std::string& method, const std::string& request);

// What is known of a method by whoever passes it on.
struct MethodTraits {
  // It changes a program: it goes on when its caller goes away, and can be cancelled.
  bool operation = false;
  // Its target is the first field of its request, a string.
  bool has_target = false;
};
// "Suspend" is the verb suspend.
std::string VerbOf(const std::string& method);
// Of a request of a method that has one; empty when it cannot be read.
std::string TargetOf(const std::string& request);

// Null: there is no such method.
const MethodTraits* FindMethod(std::string_view method);

}  // namespace stasis::service
