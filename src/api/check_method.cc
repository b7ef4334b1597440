// The method that checks whether this machine, or a program, can be checkpointed.
#include <fmt/format.h>

#include <algorithm>

#include "api/container_operations.h"
#include "api/finding_message.h"
#include "api/methods.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "checks/before_dump.h"
#include "checks/look_ahead.h"
#include "checks/nccl_neighbours.h"
#include "checks/survey.h"
#include "containers/command.h"
#include "containers/inspect.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/services.h"
#include "health/check.h"
#include "health/container_checks.h"
#include "health/program.h"
#include "jobs/agent_library.h"
#include "operations/operations.h"

namespace stasis::api {
namespace {

using health::Finding;
using health::Level;

constexpr double kDefaultTimeoutS = 20, kLongestTimeoutS = 3600;

Finding AsFinding(const std::string& id, const Error& error) {
  return Finding::Of(id, Level::kCannot, error.ToString(), error.hint);
}

device::ControlOptions ControlOptionsOf(const Call& call, double timeout_s) {
  auto control = gpu_state::ControlOptionsOf(call.settings);
  control.query_timeout = config::Milliseconds(timeout_s);
  return control;
}

Result<std::vector<Finding>> CheckHere(const Call& call, bool full, double timeout_s) {
  const auto control = ControlOptionsOf(call, timeout_s);
  auto device = device::MakeDeviceControl(control);
  auto agent = jobs::InstallAgentLibrary(call.paths);
  STASIS_ASSIGN(containers::SetupPaths setup, containers::UsualSetupPaths());
  const health::MachineOptions options{call.paths,
                                       call.settings.criu,
                                       control.library,
                                       std::move(agent),
                                       full,
                                       config::Milliseconds(timeout_s),
                                       /*root=*/{},
                                       std::move(setup)};
  return health::CheckMachine(options, *device);
}

// Checks the host memory that the data plane or the driver would need.
void AddMemory(const checks::Survey& survey, const checks::Outlook& outlook,
               std::vector<Finding>& findings) {
  const auto root = survey.target.root.pid;
  auto check = [&](uint64_t bytes) {
    return gpu_state::CheckHostMemory(bytes - std::min(bytes, outlook.unused_bytes), root);
  };
  if (auto room = check(outlook.driver_bytes); !room) {
    findings.push_back(AsFinding("program-memory", room.error()));
  } else if (room = check(survey.device_bytes()); !room) {
    findings.push_back(
        Finding::Of("program-memory", Level::kWarning, room.error().message, room.error().hint));
  }
}

// Checks whether other NCCL jobs use the GPUs of the target (docs/nccl.md). Such jobs prevent
// neither a dump nor an operation that keeps the context, so the finding is a warning.
void AddNeighbours(gpu_state::Services& services, const checks::Survey& survey,
                   std::vector<Finding>& findings) {
  using checks::NewContexts;
  for (NewContexts contexts : {NewContexts::kOfRunning, NewContexts::kOfSuspended}) {
    auto alone = checks::RefuseNcclNeighbours(services, survey, contexts, {},
                                              health::KindOf("nccl-beside").fix);
    if (alone) continue;
    findings.push_back(
        Finding::Of("nccl-beside", Level::kWarning, alone.error().message, alone.error().hint));
    return;
  }
}

// Returns true for obstacles to a dump by process id that do not matter for a dump by a container's
// runtime. The runtime creates namespaces, terminals and pipes itself, and uses its own CRIU.
bool IsRuntimesTask(const std::string& id) {
  static constexpr std::string_view kIds[] = {"pid-namespace", "mount-namespace", "session",
                                              "stdio", "criu"};
  return std::find(std::begin(kIds), std::end(kIds), id) != std::end(kIds);
}

// Checks the container's runtime, and looks for processes that a checkpoint would leave out.
Status AddContainer(const v1::CheckRequest& request, const checks::Survey& survey,
                    std::chrono::milliseconds patience, std::vector<Finding>& findings) {
  STASIS_ASSIGN(const auto reference, containers::ParseReference(request.target()));
  STASIS_ASSIGN(const auto places, PlacesOf(request.places()));
  STASIS_ASSIGN(const auto paths, containers::UsualSetupPaths());
  std::vector<containers::Observation> seen;
  if (!survey.device_processes.empty()) seen = containers::InspectSetup(paths);
  const auto runner = containers::MakeCommandRunner();
  for (auto& one : containers::InspectRuntimes(*runner, paths, places, {reference.runtime},
                                               Deadline::In(patience))) {
    seen.push_back(std::move(one));
  }
  for (const auto& one : seen) findings.push_back(health::FindingOf(one));
  if (Status hook = CheckHookMounts(survey.target.root.pid); !hook) {
    findings.push_back(AsFinding("container-hook", hook.error()));
  }
  STASIS_ASSIGN(const auto beside, ProcessesBeside(survey.tree));
  for (const auto& process : beside) {
    findings.push_back(Finding::Of("container-exec", Level::kWarning, process::Describe(process)));
  }
  return {};
}

// Finds everything that would prevent a suspend or dump of the target, without changing it.
Result<std::vector<Finding>> CheckTarget(Call& call, const v1::CheckRequest& request,
                                         double timeout_s) {
  const std::string& text = request.target();
  STASIS_ASSIGN(auto session,
                operations::OpenSession(call.paths, call.settings, "check", STASIS_VERSION));
  gpu_state::Services& services = session.services;
  services.device = device::MakeDeviceControl(ControlOptionsOf(call, timeout_s));
  services.settings.phase_timeout_s = timeout_s;
  STASIS_ASSIGN(auto target, ParseTarget(call.paths, text, request.places()));

  std::vector<checks::Refused> refused;
  auto surveyed = checks::SurveyTarget(services, target, &refused);
  if (!surveyed && surveyed.error().code == Code::kDeadlineExceeded) {
    const bool program = surveyed.error().domain == Domain::kProcess;
    return std::vector{AsFinding(program ? "program-answers" : "driver", surveyed.error())};
  }
  STASIS_ASSIGN(auto survey, std::move(surveyed));
  STASIS_ASSIGN(auto before, checks::CheckBeforeDump(services, *session.criu, survey, {},
                                                     /*leave_running=*/false, &refused));
  STASIS_ASSIGN(auto outlook, checks::LookAhead(services, survey));

  std::vector<Finding> findings;
  const uint64_t gpu_bytes = survey.device_bytes() + survey.device_bytes(true);
  findings.push_back(Finding::Of(
      "program", Level::kOk,
      fmt::format("processes: {}, with GPU state: {}, GPU memory: {} MiB",
                  survey.tree.members.size(), survey.device_processes.size(), gpu_bytes >> 20)));
  const bool container = containers::IsReference(text);
  for (const auto& [id, error] : refused) {
    if (!container || !IsRuntimesTask(id)) findings.push_back(AsFinding(id, error));
  }
  if (container) {
    STASIS_TRY(AddContainer(request, survey, config::Milliseconds(timeout_s), findings));
  }
  for (const Error& error : outlook.refusals) findings.push_back(AsFinding("gpu-memory", error));
  if (!outlook.sharing) findings.push_back(AsFinding("gpu-sharing", outlook.sharing.error()));
  AddMemory(survey, outlook, findings);
  AddNeighbours(services, survey, findings);
  auto space = checks::CheckImageSpace(services, survey, call.paths.images(), /*full=*/false,
                                       outlook.carried_bytes);
  if (!space && !container) findings.push_back(AsFinding("image-space", space.error()));
  for (const auto& note : before.stdio.notes) {
    if (!container) findings.push_back(Finding::Of("stdio", Level::kNote, note));
  }
  for (const auto& why : outlook.left_to_driver) {
    findings.push_back(
        Finding::Of("left-to-driver", Level::kNote, why, health::KindOf("left-to-driver").fix));
  }
  for (auto& found : health::LookAtProgram(survey.tree)) findings.push_back(std::move(found));
  return findings;
}

}  // namespace

v1::CheckResponse::Finding ToMessage(const Finding& finding) {
  v1::CheckResponse::Finding message;
  message.set_id(finding.kind->id);
  message.set_level(std::string(health::LevelName(finding.level)));
  message.set_found(Utf8(finding.found));
  if (finding.level == Level::kCannot) message.set_stops(finding.kind->stops);
  if (finding.level != Level::kOk) message.set_meaning(finding.kind->meaning);
  message.set_fix(Utf8(finding.fix));
  return message;
}

Result<v1::CheckResponse> Check(Call& call, const v1::CheckRequest& request) {
  const double timeout_s = request.timeout_s() == 0 ? kDefaultTimeoutS : request.timeout_s();
  if (!(timeout_s > 0 && timeout_s <= kLongestTimeoutS)) {
    return FailUsage(fmt::format("a timeout of {} s is out of range", timeout_s));
  }
  std::vector<Finding> findings;
  v1::CheckResponse response;
  if (request.target().empty()) {
    STASIS_ASSIGN(findings, CheckHere(call, request.full(), timeout_s));
  } else {
    STASIS_ASSIGN(findings, CheckTarget(call, request, timeout_s));
    response.set_target(request.target());
  }
  response.set_ok(health::IsAble(findings));
  response.set_full(request.full());
  for (const Finding& finding : findings) *response.add_findings() = ToMessage(finding);
  return response;
}

}  // namespace stasis::api
