// The files of Slurm's plugin in an installation: one for each release of Slurm for which it was
// compiled.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slurm_setup/slurm_config.h"

namespace stasis::slurm_setup {

struct InstalledPlugin {
  std::string path;
  Release release;
};

// Returns the path of the plugin that the build made with the headers installed there.
std::string DefaultPlugin(const std::string& root);
// Reads ROOT/lib/stasis/slurm*/stasis.so, the default first. Files that are no plugin are left out.
std::vector<InstalledPlugin> FindPlugins(const std::string& root);
// Returns the plugin for this release, or null.
const InstalledPlugin* PluginFor(const std::vector<InstalledPlugin>& plugins,
                                 const std::optional<Release>& release);
// Returns "22.05 and 24.11"; "no release" if there is no plugin.
std::string ReleasesOf(const std::vector<InstalledPlugin>& plugins);

}  // namespace stasis::slurm_setup
