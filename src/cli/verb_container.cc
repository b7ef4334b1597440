// stasis container and stasis cdi: prepare a machine's container runtimes.
#include <fmt/format.h>

#include <memory>

#include "api/methods.h"
#include "base/file.h"
#include "cli/message_json.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct ContainerOptions {
  std::vector<std::string> runtimes;
  std::string criu_config;
  std::string cdi_dir;
  std::string plugin_dir;
  PlaceFlags places;

  void AddTo(App verb, bool looks) {
    verb.add_option("--criu-config", criu_config,
                    "CRIU's configuration file (default: /etc/criu/default.conf)");
    verb.add_option("--cdi-dir", cdi_dir, "Folder of CDI specifications (default: /etc/cdi)");
    verb.add_option("--plugin-dir", plugin_dir,
                    "Folder with CRIU's plugin (default: lib/stasis/criu of this installation)");
    if (!looks) return;
    verb.add_option("--runtime", runtimes,
                    "Check only these: podman, containerd, runc (default: those that are "
                    "installed)")
        ->delimiter(',');
    places.AddTo(verb);
  }

  v1::ContainerSetupRequest ToMessage() const {
    v1::ContainerSetupRequest request;
    for (const std::string& runtime : runtimes) request.add_runtimes(runtime);
    if (!criu_config.empty()) request.set_criu_config(AbsolutePath(criu_config));
    if (!cdi_dir.empty()) request.set_cdi_folder(AbsolutePath(cdi_dir));
    if (!plugin_dir.empty()) request.set_plugin_folder(AbsolutePath(plugin_dir));
    *request.mutable_places() = places.ToMessage();
    return request;
  }
};

// Returns "wrote PATH" or "PATH was set up already".
std::string Changed(bool changed, const char* done, const char* before, const std::string& path) {
  return changed ? fmt::format("{} {}\n", done, path) : fmt::format("{} {}\n", path, before);
}

Outcome SetUp(const Globals& globals, const ContainerOptions& options) {
  const v1::ContainerSetupRequest request = options.ToMessage();
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  // Report a misspelt runtime before anything is changed.
  STASIS_TRY(api::CheckContainers(call, request));
  STASIS_ASSIGN(const auto response, api::SetUpContainers(call, request));
  STASIS_ASSIGN(const auto checked, api::CheckContainers(call, request));
  std::string text;
  text += Changed(response.criu_config_changed(), "wrote", "was set up already",
                  response.criu_config());
  text += Changed(response.cdi_changed(), "wrote", "was set up already", response.cdi_file());
  for (const auto& finding : checked.findings()) {
    if (finding.level() != "ok") text += FindingText(finding);
  }
  if (checked.ok()) {
    text += "Container runtimes can checkpoint GPU containers now.\n";
  }
  nlohmann::json document = MessageJson(response);
  document["ok"] = checked.ok();
  document["findings"] = MessageJson(checked)["findings"];
  PrintResult(globals, text, document);
  return checked.ok() ? 0 : kUnable;
}

Outcome CheckSetup(const Globals& globals, const ContainerOptions& options) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::CheckContainers(call, options.ToMessage()));
  std::string text;
  for (const auto& finding : response.findings()) text += FindingText(finding);
  nlohmann::json document = {{"ok", response.ok()},
                             {"findings", MessageJson(response)["findings"]}};
  PrintResult(globals, text, document);
  return response.ok() ? 0 : kUnable;
}

Outcome Remove(const Globals& globals, const ContainerOptions& options) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::RemoveContainerSetup(call, options.ToMessage()));
  PrintResult(globals,
              Changed(response.criu_config_changed(), "deleted Stasis's lines in",
                      "has no lines from Stasis", response.criu_config()) +
                  Changed(response.cdi_changed(), "deleted",
                          "does not exist, or is not from Stasis", response.cdi_file()),
              MessageJson(response));
  return 0;
}

Outcome Install(const Globals& globals, const std::string& dir) {
  v1::InstallCdiRequest request;
  if (!dir.empty()) request.set_folder(AbsolutePath(dir));
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::InstallCdi(call, request));
  PrintResult(globals,
              Changed(response.changed(), "wrote", "was there already", response.path()) +
                  fmt::format("start containers with --device {}\n", response.device()),
              MessageJson(response));
  return 0;
}

}  // namespace

void RegisterContainer(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<ContainerOptions>();
  auto verb = app.add_subcommand(
      "container", "Prepare podman, containerd and runc for checkpoints of GPU containers");
  verb->require_subcommand(1);
  auto setup = verb->add_subcommand(
      "setup", "Add Stasis's plugin to CRIU's configuration, and write the CDI device");
  options->AddTo(setup, /*looks=*/true);
  setup->callback(
      [=] { select([=](const Globals& globals) { return SetUp(globals, *options); }); });
  auto check =
      verb->add_subcommand("check", "Check the set-up, the runtimes, and the CRIU that they use");
  options->AddTo(check, /*looks=*/true);
  check->callback(
      [=] { select([=](const Globals& globals) { return CheckSetup(globals, *options); }); });
  auto remove = verb->add_subcommand("remove", "Undo `container setup`");
  options->AddTo(remove, /*looks=*/false);
  remove->callback(
      [=] { select([=](const Globals& globals) { return Remove(globals, *options); }); });
}

void RegisterCdi(App app, const std::function<void(Action)>& select) {
  auto dir = std::make_shared<std::string>();
  auto verb = app.add_subcommand("cdi", "Make the agent available to containers");
  verb->require_subcommand(1);
  auto install = verb->add_subcommand(
      "install", "Write the CDI device stasis.dev/agent=on, which loads the agent");
  install->add_option("--dir", *dir, "Folder of CDI specifications (default: /etc/cdi)");
  install->callback(
      [=] { select([=](const Globals& globals) { return Install(globals, *dir); }); });
}

}  // namespace stasis::cli
