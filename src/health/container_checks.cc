// Checks of container runtimes.
#include <fmt/format.h>

#include "health/container_checks.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

// Returns "podman, runc".
std::string InstalledRuntimes(containers::CommandRunner& runner) {
  std::vector<std::string> names;
  for (const char* program : {"podman", "ctr", "runc"}) {
    if (!runner.Find(program).empty()) names.emplace_back(program);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Finding FindingOf(const containers::Observation& seen) {
  return Finding::Of(seen.id, static_cast<Level>(seen.level), seen.found, seen.fix);
}

// The set-up for containers is optional. Without it, there is only one finding, which offers the
// set-up if a container runtime is installed.
void CheckContainers(const Machine& machine, Findings& findings) {
  const containers::SetupPaths& paths = machine.options.containers;
  const auto runner = containers::MakeCommandRunner();
  if (!containers::IsSetUp(paths)) {
    const std::string installed = InstalledRuntimes(*runner);
    findings.push_back(
        installed.empty()
            ? Finding::Of("containers", Level::kOk, "no podman, containerd or runc is installed")
            : Finding::Of("containers", Level::kNote,
                          installed + " would checkpoint a GPU container without Stasis",
                          KindOf("containers").fix));
    return;
  }
  for (const auto& seen : containers::InspectSetup(paths)) findings.push_back(FindingOf(seen));
  for (const auto& seen : containers::InspectRuntimes(*runner, paths, {}, {}, machine.Patience())) {
    findings.push_back(FindingOf(seen));
  }
}

}  // namespace stasis::health
