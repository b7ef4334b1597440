// stasis slurm: the set-up of Slurm's nodes (docs/slurm.md).
#include <fmt/format.h>

#include <memory>

#include "api/methods.h"
#include "base/install_layout.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "slurm_setup/epilog.h"
#include "slurm_setup/findings.h"
#include "slurm_setup/lines.h"
#include "slurm_setup/plugins.h"
#include "slurm_setup/site.h"

extern char** environ;

namespace stasis::cli {
namespace {

using nlohmann::json;

constexpr const char* kLevels[] = {"ok", "note", "warning", "cannot"};

v1::CheckResponse::Finding MessageOf(const slurm_setup::Judged& judged) {
  const slurm_setup::Level level = judged.finding.level;
  v1::CheckResponse::Finding message;
  message.set_id(judged.check->id);
  message.set_level(kLevels[static_cast<int>(level)]);
  message.set_found(judged.finding.found);
  message.set_fix(judged.finding.fix);
  if (level != slurm_setup::Level::kOk) message.set_meaning(judged.check->meaning);
  if (level == slurm_setup::Level::kCannot) message.set_stops(judged.check->stops);
  return message;
}

Outcome CheckSlurm(const Globals& globals) {
  slurm_setup::SiteOptions options;
  STASIS_ASSIGN(options.paths, OpenPaths(globals));
  STASIS_ASSIGN(options.root, InstallRoot());
  options.hides_gpus = globals.settings().hide_gpus;
  const slurm_setup::Site site = slurm_setup::ReadSite(options, slurm_setup::RunBounded);
  v1::CheckResponse response;
  response.set_ok(true);
  std::string text;
  for (const slurm_setup::Judged& judged : slurm_setup::JudgeSite(site)) {
    const v1::CheckResponse::Finding& finding = *response.add_findings() = MessageOf(judged);
    if (judged.finding.level == slurm_setup::Level::kCannot) response.set_ok(false);
    text += FindingText(finding);
  }
  if (response.ok()) text += "Jobs of this cluster can use --stasis.\n";
  PrintResult(globals, text,
              {{"ok", response.ok()}, {"findings", MessageJson(response)["findings"]}});
  return response.ok() ? 0 : kUnable;
}

Outcome ShowLines(const Globals& globals, const std::vector<std::string>& partitions) {
  slurm_setup::LineOptions options;
  STASIS_ASSIGN(options.root, InstallRoot());
  options.partitions = partitions;
  options.plugins = slurm_setup::FindPlugins(options.root);
  // "slurm-wlm 22.05.8"
  if (const auto version = slurm_setup::RunBounded({"scontrol", "--version"})) {
    options.release = slurm_setup::ParseRelease(version->substr(version->find(' ') + 1));
  }
  // Slurm's commands do nothing without a configuration.
  if (!options.release && !options.plugins.empty()) {
    options.release = options.plugins.front().release;
  }
  const auto files = slurm_setup::LinesFor(options);
  json document = json::array();
  for (const slurm_setup::ConfigFile& file : files) {
    json lines = json::array();
    for (const slurm_setup::ConfigLine& line : file.lines) {
      lines.push_back({{"text", line.text}, {"reason", line.reason}});
    }
    document.push_back({{"file", file.name}, {"lines", std::move(lines)}});
  }
  PrintResult(globals, slurm_setup::TextOf(files), {{"files", std::move(document)}});
  return 0;
}

Outcome FreeAfterJob(const Globals& globals) {
  STASIS_ASSIGN(const slurm_setup::EndedJob job, slurm_setup::ReadEndedJob(environ));
  STASIS_ASSIGN(const std::string root, InstallRoot());
  STASIS_ASSIGN(auto commands, slurm_setup::BecomeUser(job, root + "/bin/stasis"));
  STASIS_TRY(
      Annotate(slurm_setup::FreeLeftovers(*commands), "cannot clean up after job " + job.id));
  PrintResult(globals, "", {{"job", job.id}, {"uid", job.uid}});
  return 0;
}

}  // namespace

void RegisterSlurm(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("slurm", "Prepare Slurm's nodes for jobs that use Stasis");
  verb->require_subcommand(1);
  auto check = verb->add_subcommand(
      "check",
      "Check Slurm's configuration, the plugin, the rights and the folders, on a node or "
      "where jobs are submitted");
  check->callback([=] { select(CheckSlurm); });
  auto partitions = std::make_shared<std::vector<std::string>>();
  auto config = verb->add_subcommand(
      "config",
      "Print the lines to add to slurm.conf, plugstack.conf and cgroup.conf, and a "
      "script for Epilog=");
  config
      ->add_option("--partitions", *partitions,
                   "Partitions whose jobs use Stasis by default (default: none)")
      ->delimiter(',');
  config->callback(
      [=] { select([=](const Globals& globals) { return ShowLines(globals, *partitions); }); });
  auto epilog = verb->add_subcommand(
      "epilog", "In Slurm's Epilog: free memory and mounts that the job has left on this node");
  epilog->callback([=] { select(FreeAfterJob); });
}

}  // namespace stasis::cli
