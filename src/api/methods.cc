#include <algorithm>
#include <cctype>

#include "api/methods.h"
#include "api/usage_error.h"

namespace stasis::api {
namespace {

template <class Request, class Response, Result<Response> (*kMethod)(Call&, const Request&)>
Result<std::string> WithBytes(Call& call, const std::string& bytes) {
  Request request;
  if (!request.ParseFromString(bytes)) {
    return FailUsage("the request is not a " + request.GetTypeName());
  }
  STASIS_ASSIGN(Response response, kMethod(call, request));
  return response.SerializeAsString();
}

struct Method {
  std::string_view name;
  Result<std::string> (*call)(Call&, const std::string&);
  MethodTraits traits;
};

constexpr MethodTraits kOperation{.operation = true, .has_target = true};
constexpr MethodTraits kOwn{.drops_rights = true};
constexpr MethodTraits kOwnChange{.operation = true, .drops_rights = true};

constexpr Method kMethods[] = {
    {"Suspend", WithBytes<v1::SuspendRequest, v1::OperationEvent, Suspend>, kOperation},
    {"Resume", WithBytes<v1::ResumeRequest, v1::OperationEvent, Resume>, kOperation},
    {"Dump", WithBytes<v1::DumpRequest, v1::OperationEvent, Dump>, kOperation},
    {"Restore",
     WithBytes<v1::RestoreRequest, v1::OperationEvent, Restore>,
     {.operation = true, .has_target = true, .starts_program = true}},
    {"Recover", WithBytes<v1::RecoverRequest, v1::RecoverResponse, Recover>, {.operation = true}},
    {"Run",
     WithBytes<v1::RunRequest, v1::RunResponse, Run>,
     {.operation = true, .starts_program = true}},
    {"ManageJob", WithBytes<v1::ManageJobRequest, v1::ManageJobResponse, ManageJob>, kOperation},
    {"ListJobs", WithBytes<v1::ListJobsRequest, v1::ListJobsResponse, ListJobs>, {}},
    {"GetJob", WithBytes<v1::GetJobRequest, v1::Job, GetJob>, {}},
    {"WaitJob", WithBytes<v1::WaitJobRequest, v1::Job, WaitJob>, {}},
    {"KillJob", WithBytes<v1::KillJobRequest, v1::KillJobResponse, KillJob>, kOperation},
    {"DeleteJob", WithBytes<v1::DeleteJobRequest, v1::DeleteJobResponse, DeleteJob>, kOperation},
    {"ListCheckpoints",
     WithBytes<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse, ListCheckpoints>,
     {}},
    {"ReadLog",
     WithBytes<v1::ReadLogRequest, v1::ReadLogResponse, ReadLog>,
     {.has_target = true, .drops_rights = true}},
    {"ListImages", WithBytes<v1::ListImagesRequest, v1::ListImagesResponse, ListImages>, kOwn},
    {"InspectImage", WithBytes<v1::InspectImageRequest, v1::InspectImageResponse, InspectImage>,
     kOwn},
    {"VerifyImage", WithBytes<v1::VerifyImageRequest, v1::VerifyImageResponse, VerifyImage>, kOwn},
    {"DeleteImages", WithBytes<v1::DeleteImagesRequest, v1::DeleteImagesResponse, DeleteImages>,
     kOwnChange},
    {"CollectGarbage",
     WithBytes<v1::CollectGarbageRequest, v1::CollectGarbageResponse, CollectGarbage>, kOwnChange},
    {"PushImage",
     WithBytes<v1::PushImageRequest, v1::OperationEvent, PushImage>,
     {.operation = true, .has_target = true, .drops_rights = true}},
    {"PullImage",
     WithBytes<v1::PullImageRequest, v1::OperationEvent, PullImage>,
     {.operation = true, .has_target = true, .drops_rights = true}},
    {"AddRepository", WithBytes<v1::AddRepositoryRequest, v1::AddRepositoryResponse, AddRepository>,
     kOwnChange},
    {"ListRepositories",
     WithBytes<v1::ListRepositoriesRequest, v1::ListRepositoriesResponse, ListRepositories>, kOwn},
    {"CheckRepository",
     WithBytes<v1::CheckRepositoryRequest, v1::CheckRepositoryResponse, CheckRepository>, kOwn},
    {"RemoveRepository",
     WithBytes<v1::RemoveRepositoryRequest, v1::RemoveRepositoryResponse, RemoveRepository>,
     kOwnChange},
    {"ListArenas", WithBytes<v1::ListArenasRequest, v1::ListArenasResponse, ListArenas>, kOwn},
    {"ReserveArena", WithBytes<v1::ReserveArenaRequest, v1::ReserveArenaResponse, ReserveArena>,
     kOwnChange},
    {"FreeArenas", WithBytes<v1::FreeArenasRequest, v1::FreeArenasResponse, FreeArenas>,
     kOwnChange},
    {"CreateKey", WithBytes<v1::CreateKeyRequest, v1::CreateKeyResponse, CreateKey>, kOwnChange},
    {"ShowKey", WithBytes<v1::ShowKeyRequest, v1::ShowKeyResponse, ShowKey>, kOwn},
    {"JoinKey", WithBytes<v1::JoinKeyRequest, v1::JoinKeyResponse, JoinKey>, kOwnChange},
    {"ListGpus", WithBytes<v1::ListGpusRequest, v1::ListGpusResponse, ListGpus>, kOwn},
    {"GpuStep",
     WithBytes<v1::GpuStepRequest, v1::GpuStepResponse, GpuStep>,
     {.operation = true, .has_target = true, .drops_rights = true}},
    {"ListContainers",
     WithBytes<v1::ListContainersRequest, v1::ListContainersResponse, ListContainers>,
     {}},
    {"Check", WithBytes<v1::CheckRequest, v1::CheckResponse, Check>, {.has_target = true}},
    // The rest are not methods of the service. Only the daemon calls them, in a worker.
    {"Hold", Hold, {.operation = true}},
    {"GetUsage", WithBytes<v1::UsageRequest, v1::Usage, GetUsage>, {}},
    {"SurveyShares", WithBytes<v1::SurveySharesRequest, v1::ShareSurvey, SurveyShares>, {}},
    {"ReadyArenas", WithBytes<v1::ReadyArenasRequest, v1::ReadyArenasResponse, ReadyArenas>, {}},
};

const Method* Find(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                   [&](const Method& method) { return method.name == name; });
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace

std::optional<MethodTraits> TraitsOf(std::string_view method, const std::string& request) {
  const Method* found = Find(method);
  if (found == nullptr) return std::nullopt;
  MethodTraits traits = found->traits;
  if (method == "GpuStep") {
    v1::GpuStepRequest step;
    traits.operation = !step.ParseFromString(request) || !OnlyReads(step);
  }
  return traits;
}

std::string VerbOf(const std::string& method) {
  std::string verb = method;
  std::transform(verb.begin(), verb.end(), verb.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return verb;
}

std::string TargetOf(const std::string& request) {
  v1::AnyTarget any;
  return any.ParseFromString(request) ? any.target() : "";
}

Result<std::string> CallMethod(Call& call, const std::string& method, const std::string& request) {
  const Method* found = Find(method);
  if (found == nullptr) {
    return Fail(Code::kUnimplemented, "there is no method " + method.substr(0, 64));
  }
  return found->call(call, request);
}

}  // namespace stasis::api
