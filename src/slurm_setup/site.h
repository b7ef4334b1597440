// What this machine and its cluster look like to Stasis: the facts that findings.h judges.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "slurm_setup/plugins.h"
#include "slurm_setup/slurm_config.h"

namespace stasis::slurm_setup {

struct Folder {
  std::string path;
  std::string problem;    // why this user cannot write there; empty if it is possible
  bool is_local = false;  // on a file system that other nodes cannot see
  uint64_t free_bytes = 0;
};

struct Site {
  std::string problem;  // why Slurm's configuration cannot be read; the rest is then mostly empty
  Values config;
  std::vector<Values> partitions;

  std::string plugstack;          // path
  std::string plugstack_problem;  // why it cannot be read
  std::optional<PluginLine> plugin;
  std::string plugin_path;  // absolute
  bool plugin_exists = false;
  std::optional<Release> compiled_for;   // the release of the plugin's file
  std::vector<InstalledPlugin> plugins;  // of the installation of the running command
  std::string launcher;
  bool launcher_works = false;

  bool is_root = false;
  // The capabilities that slurmd may have; no value if it does not run here.
  std::optional<uint64_t> slurmd_rights;
  int last_capability = 0;  // the highest capability that the kernel knows
  Folder images, run;
  bool hides_gpus = false;
  // The program Epilog= calls `stasis slurm epilog`; no value if it cannot be read.
  std::optional<bool> epilog_calls;

  std::optional<Release> release() const { return ParseRelease(config.Get("slurm_version")); }
  int64_t nodes() const;  // of the largest partition
};

// Runs a command to its end, and returns its standard output.
using RunCommand = std::function<Result<std::string>(const std::vector<std::string>& argv)>;

struct SiteOptions {
  Paths paths;
  bool hides_gpus = false;
  std::string root;  // of the installation
  std::string proc = "/proc";
};

// Never fails: what cannot be read is a fact of the site. Takes as long as two commands of Slurm.
Site ReadSite(const SiteOptions& options, const RunCommand& run);
// Runs a command, which it kills after 20 s.
Result<std::string> RunBounded(const std::vector<std::string>& argv);

}  // namespace stasis::slurm_setup
