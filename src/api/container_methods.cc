// The methods for container runtimes: they list containers and set up the machine.
#include <fmt/format.h>

#include "api/finding_message.h"
#include "api/gpu_usage.h"
#include "api/methods.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "containers/cdi.h"
#include "containers/runtime.h"
#include "containers/setup.h"
#include "health/container_checks.h"
#include "jobs/agent_library.h"

namespace stasis::api {
namespace {

// Returns the state of a container in one word: "failed" or "suspended" for the state of its GPU
// processes, otherwise the runtime's word.
std::string StateOf(const containers::Container& container, const GpuUsage& usage) {
  if (usage.failed) return "failed";
  return usage.suspended ? "suspended" : container.status;
}

void Fill(const containers::Container& container, const GpuUsage& usage, uint32_t processes,
          v1::ListContainersResponse::Container& message) {
  message.set_target(Utf8(container.reference.ToString()));
  message.set_id(Utf8(container.id));
  message.set_state(Utf8(StateOf(container, usage)));
  if (container.pid > 0) message.set_pid(container.pid);
  message.set_processes(processes);
  message.set_uses_gpu(usage.uses_gpu);
  message.set_gpu_bytes(usage.gpu_bytes);
  message.set_suspended_bytes(usage.suspended_bytes);
  message.set_context_kept(usage.context_kept);
}

Result<containers::SetupPaths> SetupPathsOf(const v1::ContainerSetupRequest& request) {
  STASIS_TRY(CheckAbsolute("CRIU's configuration", request.criu_config()));
  STASIS_TRY(CheckAbsolute("the CDI folder", request.cdi_folder()));
  STASIS_TRY(CheckAbsolute("the plugin folder", request.plugin_folder()));
  STASIS_ASSIGN(auto paths, containers::UsualSetupPaths());
  if (!request.criu_config().empty()) paths.criu_config = request.criu_config();
  if (!request.cdi_folder().empty()) paths.cdi_folder = request.cdi_folder();
  if (!request.plugin_folder().empty()) paths.plugin_folder = request.plugin_folder();
  return paths;
}

Result<std::vector<containers::Runtime>> RuntimesOf(const v1::ContainerSetupRequest& request) {
  std::vector<containers::Runtime> runtimes;
  for (const std::string& name : request.runtimes()) {
    STASIS_ASSIGN(runtimes.emplace_back(), containers::ParseRuntime(name));
  }
  return runtimes;
}

v1::ContainerSetupResponse ResponseOf(const containers::SetupPaths& paths,
                                      const containers::SetupResult& result) {
  v1::ContainerSetupResponse response;
  response.set_criu_config(Utf8(paths.criu_config));
  response.set_criu_config_changed(result.criu_config_changed);
  response.set_cdi_file(Utf8(paths.cdi_folder + "/" + containers::kCdiFile));
  response.set_cdi_changed(result.cdi_changed);
  return response;
}

}  // namespace

Result<v1::ListContainersResponse> ListContainers(Call& call,
                                                  const v1::ListContainersRequest& request) {
  STASIS_ASSIGN(const auto places, PlacesOf(request.places()));
  const auto runner = containers::MakeCommandRunner();
  const auto listed = ListContainers(*runner, places, Deadline::In(kRuntimeTimeout));
  std::map<std::string, process::HostPid> roots;
  for (const auto& container : listed.containers) {
    if (container.pid > 0) roots[container.reference.ToString()] = {container.pid};
  }
  GpuUsages gpus;
  if (!roots.empty()) gpus = ReadGpuUsages(call.paths, call.settings, roots);
  auto snapshot = process::Snapshot::Take();
  v1::ListContainersResponse response;
  for (const auto& container : listed.containers) {
    auto tree = snapshot ? snapshot->Tree({container.pid})
                         : Result<process::ProcessTree>(Fail(snapshot.error()));
    const bool runs = container.pid > 0 && tree;
    Fill(container, gpus.by_name[container.reference.ToString()],
         runs ? static_cast<uint32_t>(tree->members.size()) : 0, *response.add_containers());
  }
  for (const std::string& problem : listed.problems) response.add_problems(Utf8(problem));
  if (!gpus.problem.empty()) response.add_problems(Utf8(gpus.problem));
  return response;
}

Result<v1::ContainerSetupResponse> SetUpContainers(Call& call,
                                                   const v1::ContainerSetupRequest& request) {
  STASIS_ASSIGN(const auto paths, SetupPathsOf(request));
  STASIS_ASSIGN(const std::string library, jobs::InstallAgentLibrary(call.paths));
  STASIS_ASSIGN(const auto result, containers::SetUp(paths, library));
  return ResponseOf(paths, result);
}

Result<v1::ContainerSetupResponse> RemoveContainerSetup(Call&,
                                                        const v1::ContainerSetupRequest& request) {
  STASIS_ASSIGN(const auto paths, SetupPathsOf(request));
  STASIS_ASSIGN(const auto result, containers::RemoveSetup(paths));
  return ResponseOf(paths, result);
}

Result<v1::CheckResponse> CheckContainers(Call&, const v1::ContainerSetupRequest& request) {
  STASIS_ASSIGN(const auto paths, SetupPathsOf(request));
  STASIS_ASSIGN(const auto places, PlacesOf(request.places()));
  STASIS_ASSIGN(const auto runtimes, RuntimesOf(request));
  auto seen = containers::InspectSetup(paths);
  const auto runner = containers::MakeCommandRunner();
  for (auto& one : containers::InspectRuntimes(*runner, paths, places, runtimes,
                                               Deadline::In(kRuntimeTimeout))) {
    seen.push_back(std::move(one));
  }
  std::vector<health::Finding> findings;
  for (const auto& one : seen) findings.push_back(health::FindingOf(one));
  v1::CheckResponse response;
  response.set_ok(health::IsAble(findings));
  for (const auto& finding : findings) *response.add_findings() = ToMessage(finding);
  return response;
}

Result<v1::InstallCdiResponse> InstallCdi(Call& call, const v1::InstallCdiRequest& request) {
  STASIS_TRY(CheckAbsolute("the CDI folder", request.folder()));
  const std::string folder = request.folder().empty() ? containers::kCdiFolder : request.folder();
  STASIS_ASSIGN(const std::string library, jobs::InstallAgentLibrary(call.paths));
  STASIS_ASSIGN(const auto installed, containers::InstallCdi(folder, library));
  v1::InstallCdiResponse response;
  response.set_path(Utf8(installed.path));
  response.set_changed(installed.written);
  response.set_device(containers::kCdiDevice);
  response.set_library(Utf8(library));
  return response;
}

}  // namespace stasis::api
