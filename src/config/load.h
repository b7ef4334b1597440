// The sources of settings. A later source overrides an earlier one:
//
//   the default                                 table.cc
//   /etc/stasis/config.toml                     for all users of the machine
//   $XDG_CONFIG_HOME/stasis/config.toml         for one user, not read by root; without that
//   or ~/.config/stasis/config.toml             variable the second path is used
//   the environment variable of the setting     an empty one counts as unset
//
// $STASIS_CONFIG names a file that replaces both files; it must exist.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "config/table.h"

namespace stasis::config {

struct Origin {
  From from = From::kDefault;
  std::string file;  // for kFile
  int line = 0;
};

struct Source {
  std::string path;
  bool found;
};

struct Config {
  Config() : origins(Rows().size()) {}
  Settings settings;
  std::vector<Origin> origins;  // one for each row
  std::vector<Source> files;    // files that Load tried to read; later ones override earlier ones
};

// The surroundings that loading depends on; tests replace them.
struct Surroundings {
  Surroundings();  // those of this process
  uid_t uid;
  std::string system_file;
  // Returns the value of an environment variable, or an empty string if it is not set.
  std::function<std::string(const char*)> variable;
  // This process has more rights than the user that started it (AT_SECURE).
  bool more_rights;
};

// Loads all settings, or none: a mistake in any file or environment variable is an error. Skipping
// a setting could silently select another directory of jobs.
Result<Config> Load(const Surroundings& surroundings = {});

// Resets settings that the user must not control. A program, such as a worker of the daemon, calls
// this if it has more rights than the user whose files and environment variables `config` came
// from. Each trusted setting (Row::trusted: programs that are started or loaded with those rights,
// and the user's limits) and its origin are taken from the machine's own file, or from the default.
// Load does this itself if `more_rights` is set. PATH and the dynamic loader's environment
// variables are not settings: the process that starts such a program must set them.
Status DropUntrusted(Config& config, const Surroundings& surroundings = {});

}  // namespace stasis::config
