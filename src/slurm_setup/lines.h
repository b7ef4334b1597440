// The lines of `stasis slurm config` for Slurm's configuration files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slurm_setup/plugins.h"
#include "slurm_setup/slurm_config.h"

namespace stasis::slurm_setup {

struct ConfigLine {
  std::string text;
  std::string reason;  // one sentence; empty: belongs to the line before
};
struct ConfigFile {
  std::string name;  // "slurm.conf"
  std::vector<ConfigLine> lines;
};

struct LineOptions {
  std::string root;                     // of the installation
  std::optional<Release> release;       // of Slurm here, if known
  std::vector<std::string> partitions;  // where --stasis is the default
  std::vector<InstalledPlugin> plugins;
};

std::vector<ConfigFile> LinesFor(const LineOptions& options);
// Returns the text to show: each line with its reason as a comment in front.
std::string TextOf(const std::vector<ConfigFile>& files);

}  // namespace stasis::slurm_setup
