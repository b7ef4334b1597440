#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "api/target.h"
#include "checks/before_dump.h"
#include "checks/look_ahead.h"
#include "checks/nccl_neighbours.h"
#include "checks/survey.h"
#include "cli/verb.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/services.h"
#include "health/check.h"
#include "health/program.h"
#include "jobs/agent_library.h"
#include "operations/operations.h"

namespace stasis::cli {
namespace {

using health::Finding;
using health::Level;

constexpr double kMostPatienceS = 3600;

struct CheckFlags {
  std::string target;
  bool full = false;
  double timeout_s = 20;
};

std::string AsText(const Finding& finding) {
  const health::Kind& kind = *finding.kind;
  std::string text =
      fmt::format("{:<8} {:<19} {}\n", health::LevelName(finding.level), kind.id, finding.found);
  auto add = [&](const char* what, std::string_view words) {
    if (!words.empty()) text += fmt::format("{:<28} {:<6} {}\n", "", what, words);
  };
  if (finding.level == Level::kCannot) add("stops:", kind.stops);
  if (finding.level >= Level::kWarning) add("means:", kind.meaning);
  add("fix:", finding.fix);
  return text;
}

nlohmann::json AsJson(const Finding& finding) {
  const bool cannot = finding.level == Level::kCannot, ok = finding.level == Level::kOk;
  return {{"id", finding.kind->id},
          {"level", health::LevelName(finding.level)},
          {"found", finding.found},
          {"stops", cannot ? finding.kind->stops : ""},
          {"meaning", ok ? "" : finding.kind->meaning},
          {"fix", finding.fix}};
}

int Print(const Globals& globals, const CheckFlags& flags, const std::vector<Finding>& findings,
          const std::string& last_line) {
  std::string text;
  auto list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    text += AsText(finding);
    list.push_back(AsJson(finding));
  }
  const bool able = health::IsAble(findings);
  if (able) text += last_line + "\n";
  nlohmann::json target = nullptr;
  if (!flags.target.empty()) target = flags.target;
  PrintResult(globals, text,
              {{"ok", able}, {"target", target}, {"full", flags.full}, {"findings", list}});
  return able ? 0 : 5;
}

device::ControlOptions ControlOptionsOf(const Globals& globals, const CheckFlags& flags) {
  auto control = gpu_state::ControlOptionsOf(globals.settings());
  control.query_timeout = config::Milliseconds(flags.timeout_s);
  return control;
}

Outcome CheckHere(const Globals& globals, const CheckFlags& flags) {
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  const auto control = ControlOptionsOf(globals, flags);
  auto device = device::MakeDeviceControl(control);
  auto agent = jobs::InstallAgentLibrary(paths);
  health::MachineOptions options{paths,           globals.settings().criu,
                                 control.library, std::move(agent),
                                 flags.full,      config::Milliseconds(flags.timeout_s)};
  auto findings = health::CheckMachine(options, *device);
  return Print(globals, flags, findings,
               ::geteuid() == 0 ? "This machine is able."
                                : "This machine is able; `sudo stasis check` looks at it as root.");
}

Finding AsFinding(const std::string& id, const Error& error) {
  return Finding::Of(id, Level::kCannot, error.ToString(), error.hint);
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

// Checks for NCCL neighbours, which prevent neither a dump nor an operation that keeps the context.
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

// Reports everything that would prevent a suspend or dump of the target, without touching it.
Outcome CheckTarget(const Globals& globals, const CheckFlags& flags) {
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  STASIS_ASSIGN(auto session,
                operations::OpenSession(paths, globals.settings(), "check", STASIS_VERSION));
  gpu_state::Services& services = session.services;
  services.device = device::MakeDeviceControl(ControlOptionsOf(globals, flags));
  services.settings.phase_timeout_s = flags.timeout_s;
  STASIS_ASSIGN(auto target, api::ParseTarget(paths, flags.target));

  std::vector<checks::Refused> refused;
  auto surveyed = checks::SurveyTarget(services, target, &refused);
  if (!surveyed && surveyed.error().code == Code::kDeadlineExceeded) {
    const bool program = surveyed.error().domain == Domain::kProcess;
    return Print(globals, flags,
                 {AsFinding(program ? "program-answers" : "driver", surveyed.error())}, "");
  }
  STASIS_ASSIGN(auto survey, std::move(surveyed));
  STASIS_ASSIGN(auto before, checks::CheckBeforeDump(services, *session.criu, survey, {},
                                                     /*leave_running=*/false, &refused));
  STASIS_ASSIGN(auto outlook, checks::LookAhead(services, survey));

  std::vector<Finding> findings;
  findings.push_back(
      Finding::Of("program", Level::kOk,
                  fmt::format("{} processes, of which {} use a GPU, with {} of its memory",
                              survey.tree.members.size(), survey.device_processes.size(),
                              FormatBytes(survey.device_bytes() + survey.device_bytes(true)))));
  for (const auto& [id, error] : refused) findings.push_back(AsFinding(id, error));
  for (const Error& error : outlook.refusals) findings.push_back(AsFinding("gpu-memory", error));
  if (!outlook.sharing) findings.push_back(AsFinding("gpu-sharing", outlook.sharing.error()));
  AddMemory(survey, outlook, findings);
  AddNeighbours(services, survey, findings);
  auto space = checks::CheckImageSpace(services, survey, paths.images(), /*full=*/false,
                                       outlook.carried_bytes);
  if (!space) findings.push_back(AsFinding("image-space", space.error()));
  for (const auto& note : before.stdio.notes) {
    findings.push_back(Finding::Of("stdio", Level::kNote, note));
  }
  for (const auto& why : outlook.left_to_driver) {
    findings.push_back(
        Finding::Of("left-to-driver", Level::kNote, why, health::KindOf("left-to-driver").fix));
  }
  for (auto& found : health::LookAtProgram(survey.tree)) findings.push_back(std::move(found));
  return Print(globals, flags, findings,
               flags.target + ": nothing stands in the way of suspend, dump or restore");
}

}  // namespace

void RegisterCheck(App app, const std::function<void(Action)>& select) {
  auto flags = std::make_shared<CheckFlags>();
  auto verb = app.add_subcommand("check", "Is this machine able? Is this program?");
  verb->add_option("TARGET", flags->target,
                   "A job or a process id; without it the machine is checked");
  verb->add_flag("--full", flags->full,
                 "Of the machine also what takes seconds, and half a GiB of each GPU for a moment: "
                 "the disk's speed, what a program's agent answers, a mover on each GPU");
  verb->add_option("--timeout", flags->timeout_s,
                   "Seconds for any one question to the driver, CRIU or a disk")
      ->range(0.1, kMostPatienceS)
      ->capture_default_str();
  verb->footer(
      "Each finding is ok, a note, a warning, or says what this machine or program cannot "
      "do: then the exit code is 5. docs/check.md lists them all.");
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      return flags->target.empty() ? CheckHere(globals, *flags) : CheckTarget(globals, *flags);
    });
  });
}

}  // namespace stasis::cli
