#include "containers/setup.h"

#include "base/file.h"
#include "containers/cdi.h"
#include "containers/criu_config.h"
#include "containers/shared_file.h"

namespace stasis::containers {

Result<SetupResult> SetUp(const SetupPaths& paths, const std::string& library) {
  const std::string plugin = paths.plugin_folder + "/" + kPlugin;
  if (!PathExists(plugin)) {
    // If the folder of plugins does not exist, CRIU fails for every container.
    return Fail(Code::kUnimplemented, "CRIU's plugin is missing: there is no " + plugin,
                "the installation is incomplete: unpack or build it again");
  }
  if (paths.plugin_folder.find_first_of("\"'#\\\n\r\t ") != std::string::npos) {
    return Fail(Code::kUnimplemented,
                "CRIU's configuration cannot name " + paths.plugin_folder +
                    ": its path has a blank, a quote or '#'",
                "install Stasis at a path without these characters");
  }
  STASIS_ASSIGN(const std::string before, ReadSharedFile(paths.criu_config));
  STASIS_ASSIGN(const std::string after,
                AddToCriuConfig(before, paths.plugin_folder, paths.criu_config));
  SetupResult result;
  // The CDI specification is written first, because it does no harm without the lines in CRIU's
  // configuration.
  STASIS_ASSIGN(const CdiInstalled cdi, InstallCdi(paths.cdi_folder, library));
  result.cdi_changed = cdi.written;
  if (after != before) {
    STASIS_TRY(WriteSharedFile(paths.criu_config, after));
    result.criu_config_changed = true;
  }
  return result;
}

Result<SetupResult> RemoveSetup(const SetupPaths& paths) {
  SetupResult result;
  STASIS_ASSIGN(const std::string before, ReadSharedFile(paths.criu_config));
  const std::string after = RemoveFromCriuConfig(before);
  if (after != before) {
    // If the file is empty without Stasis's lines, the set-up created it, so remove it.
    STASIS_TRY(after.empty() ? RemoveSharedFile(paths.criu_config)
                             : WriteSharedFile(paths.criu_config, after));
    result.criu_config_changed = true;
  }
  STASIS_ASSIGN(result.cdi_changed, RemoveCdi(paths.cdi_folder));
  return result;
}

}  // namespace stasis::containers
