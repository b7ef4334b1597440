// The methods of the service (proto/stasis/v1/stasis.proto defines them), executed with the
// credentials of this process. Events of a stream go to Call::emit; the result is the answer, or
// the stream's last message.
//
// Requests come from users, so everything in them is checked here or in a lower layer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

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
// Emits the log in parts; stops early if the call is cancelled.
Result<v1::ReadLogResponse> ReadLog(Call& call, const v1::ReadLogRequest& request);

Result<v1::ListImagesResponse> ListImages(Call& call, const v1::ListImagesRequest& request);
Result<v1::InspectImageResponse> InspectImage(Call& call, const v1::InspectImageRequest& request);
// Emits progress as an OperationEvent with phase_bytes.
Result<v1::VerifyImageResponse> VerifyImage(Call& call, const v1::VerifyImageRequest& request);
Result<v1::DeleteImagesResponse> DeleteImages(Call& call, const v1::DeleteImagesRequest& request);
Result<v1::CollectGarbageResponse> CollectGarbage(Call& call,
                                                  const v1::CollectGarbageRequest& request);
// Push and pull emit progress as phase_bytes.
Result<v1::OperationEvent> PushImage(Call& call, const v1::PushImageRequest& request);
Result<v1::OperationEvent> PullImage(Call& call, const v1::PullImageRequest& request);
Result<v1::AddRepositoryResponse> AddRepository(Call& call,
                                                const v1::AddRepositoryRequest& request);
Result<v1::ListRepositoriesResponse> ListRepositories(Call& call,
                                                      const v1::ListRepositoriesRequest& request);
// Reports a failed step in the answer, not as an error.
Result<v1::CheckRepositoryResponse> CheckRepository(Call& call,
                                                    const v1::CheckRepositoryRequest& request);
Result<v1::RemoveRepositoryResponse> RemoveRepository(Call& call,
                                                      const v1::RemoveRepositoryRequest& request);
Result<v1::ListArenasResponse> ListArenas(Call& call, const v1::ListArenasRequest& request);
Result<v1::ReserveArenaResponse> ReserveArena(Call& call, const v1::ReserveArenaRequest& request);
Result<v1::FreeArenasResponse> FreeArenas(Call& call, const v1::FreeArenasRequest& request);
Result<v1::CreateKeyResponse> CreateKey(Call& call, const v1::CreateKeyRequest& request);
Result<v1::ShowKeyResponse> ShowKey(Call& call, const v1::ShowKeyRequest& request);
Result<v1::JoinKeyResponse> JoinKey(Call& call, const v1::JoinKeyRequest& request);
Result<v1::ListGpusResponse> ListGpus(Call& call, const v1::ListGpusRequest& request);
Result<v1::GpuStepResponse> GpuStep(Call& call, const v1::GpuStepRequest& request);
// Returns true for a step that changes nothing: "state" or "restore-tid".
bool OnlyReads(const v1::GpuStepRequest& request);
Result<v1::ListContainersResponse> ListContainers(Call& call,
                                                  const v1::ListContainersRequest& request);
Result<v1::CheckResponse> Check(Call& call, const v1::CheckRequest& request);

// Serves the connection of CRIU's plugin that the daemon hands over (operations/hold.h). The
// request is empty.
Result<std::string> Hold(Call& call, const std::string& request);

// The following functions are not methods of the service, because they change files of the machine
// with the rights of this process.
Result<v1::ContainerSetupResponse> SetUpContainers(Call& call,
                                                   const v1::ContainerSetupRequest& request);
Result<v1::ContainerSetupResponse> RemoveContainerSetup(Call& call,
                                                        const v1::ContainerSetupRequest& request);
Result<v1::CheckResponse> CheckContainers(Call& call, const v1::ContainerSetupRequest& request);
Result<v1::InstallCdiResponse> InstallCdi(Call& call, const v1::InstallCdiRequest& request);

// Returns the caller's usage, for the daemon's metrics. Does not ask the driver, which could block.
Result<v1::Usage> GetUsage(Call& call, const v1::UsageRequest& request);

// Returns the caller's jobs that share GPUs, with their memory, for the daemon's sharing.
Result<v1::ShareSurvey> SurveyShares(Call& call, const v1::SurveySharesRequest& request);
// Makes host memory ready for the next suspends of the caller's jobs (arena.reserve).
Result<v1::ReadyArenasResponse> ReadyArenas(Call& call, const v1::ReadyArenasRequest& request);

// Calls a method by name, for example "Suspend", with serialized messages. Returns kInvalidArgument
// if the request cannot be parsed, and kUnimplemented if there is no such method.
Result<std::string> CallMethod(Call& call, const std::string& method, const std::string& request);

// Facts about a call that the daemon needs to forward it.
struct MethodTraits {
  // The call changes something. It continues if its caller disconnects, it can be cancelled, and a
  // drain waits for it.
  bool operation = false;
  // The first field of the request is a string, the target.
  bool has_target = false;
  // The call starts or restores a program, which joins the caller's control groups.
  bool starts_program = false;
  // The worker drops the capabilities that it keeps for CRIU. A request names paths and processes,
  // and a path may lead through another process's /proc/PID/fd, which the capabilities would open.
  // Not set for calls that use CRIU, nor for Check, which reports whether CRIU would work for the
  // caller.
  bool drops_rights = false;
};
// Returns "suspend" for "Suspend".
std::string VerbOf(const std::string& method);
// Returns the target in a request of a method with `has_target`, or an empty string if the request
// cannot be parsed.
std::string TargetOf(const std::string& request);

// Returns no value if there is no such method. `request` matters only for GpuStep, because some of
// its steps only read.
std::optional<MethodTraits> TraitsOf(std::string_view method, const std::string& request);

}  // namespace stasis::api
