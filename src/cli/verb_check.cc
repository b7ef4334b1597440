#include <fmt/format.h>

#include <memory>

#include "cli/operation.h"
#include "coordinator/look_ahead.h"
#include "criu/preflight.h"
#include "criu/probe.h"
#include "health/check.h"

namespace stasis::cli {
namespace {

constexpr const char* kVerdicts[] = {"ok", "note", "BAD"};

Outcome CheckHere(const Globals& globals) {
  STASIS_ASSIGN(Paths paths, OpenPaths());
  auto device = device::MakeDeviceControl({});
  auto findings = health::CheckMachine(paths, *device);
  std::string text;
  auto document = nlohmann::json::array();
  for (const auto& f : findings) {
    text += fmt::format("{:<5} {:<13} {}\n", kVerdicts[static_cast<int>(f.verdict)], f.subject,
                        f.found);
    if (!f.stops.empty()) text += fmt::format("{:<19} stops: {}\n", "", f.stops);
    if (!f.remedy.empty()) text += fmt::format("{:<19} mend:  {}\n", "", f.remedy);
    document.push_back({{"subject", f.subject},
                        {"verdict", kVerdicts[static_cast<int>(f.verdict)]},
                        {"found", f.found},
                        {"stops", f.stops},
                        {"remedy", f.remedy}});
  }
  bool good = health::AllGood(findings);
  PrintResult(globals, text, {{"ok", good}, {"findings", document}});
  return good ? 0 : 5;
}

// All that stands in the way of a suspend or a dump of the target, without touching it.
Outcome CheckTarget(const Globals& globals, const std::string& name) {
  STASIS_ASSIGN(Paths paths, OpenPaths());
  STASIS_ASSIGN(auto session, coordinator::OpenSession(paths, "check", STASIS_VERSION));
  STASIS_ASSIGN(auto target, ParseTarget(paths, name));
  STASIS_ASSIGN(auto survey, coordinator::SurveyTarget(session.services, target));
  STASIS_ASSIGN(auto stdio,
                criu::PlanStdio(survey.tree, coordinator::LogOf(session.services, target)));
  STASIS_ASSIGN(auto obstacles, criu::FindObstacles(survey.tree, {}, stdio));
  std::string text;
  auto document = nlohmann::json::array();
  auto add = [&](const std::string& subject, const std::string& message, const std::string& hint) {
    text += fmt::format("BAD   {}\n", message);
    if (!hint.empty()) text += fmt::format("      mend:  {}\n", hint);
    document.push_back({{"subject", subject}, {"message", message}, {"remedy", hint}});
  };
  for (const auto& obstacle : obstacles) add(obstacle.name, obstacle.message, obstacle.hint);
  // Everything else that a dump asks beforehand.
  const std::pair<const char*, Status> others[] = {
      {"gpu-files", coordinator::CheckOnlyDeviceUsers(session.services, survey)},
      {"background", coordinator::CheckNothingOutside(session.services, survey)},
      {"memory", coordinator::CheckHostMemory(survey.device_bytes(), target.root.pid)},
      {"rights", criu::CheckPrivileges()},
  };
  for (const auto& [subject, status] : others) {
    if (!status) add(subject, status.error().message, status.error().hint);
  }
  STASIS_ASSIGN(auto outlook, coordinator::LookAhead(session.services, survey));
  for (const auto& error : outlook.refusals) add("gpu-memory", error.ToString(), error.hint);
  bool good = document.empty();
  std::vector<std::string> notes = stdio.notes;
  notes.insert(notes.end(), outlook.notes.begin(), outlook.notes.end());
  for (const auto& note : notes) text += "note  " + note + "\n";
  if (good)
    text += fmt::format("{}: nothing stands in the way of suspend, dump or restore\n", name);
  PrintResult(globals, text,
              {{"ok", good}, {"target", name}, {"obstacles", document}, {"notes", notes}});
  return good ? 0 : 5;
}

}  // namespace

void RegisterCheck(CLI::App& app, const std::function<void(Action)>& select) {
  auto target = std::make_shared<std::string>();
  auto* verb = app.add_subcommand("check", "Is this machine able? Is this program?");
  verb->add_option("TARGET", *target, "A job or a process id; without it the machine is checked");
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      return target->empty() ? CheckHere(globals) : CheckTarget(globals, *target);
    });
  });
}

}  // namespace stasis::cli
