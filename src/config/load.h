// Where each setting comes from. The later decides:
//
//   the default                                 table.cc
//   /etc/stasis/config.toml                     the machine's
//   $XDG_CONFIG_HOME/stasis/config.toml         a user's who is not root; without that variable
//   or ~/.config/stasis/config.toml             the second
//   the variable of the setting                 an empty one is as good as none
//
// $STASIS_CONFIG names a file that stands in the place of both; it has to be there.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "config/table.h"

namespace stasis::config {

struct Origin {
  From from = From::kDefault;
  std::string file;  // of kFile
  int line = 0;
};

struct Source {
  std::string path;
  bool found;
};

struct Config {
  Config() : origins(Rows().size()) {}
  Settings settings;
  std::vector<Origin> origins;  // of each row
  std::vector<Source> files;    // that were looked for, the one that decides last
};

// What the loading depends on; tests have their own.
struct Surroundings {
  Surroundings();  // this process's
  uid_t uid;
  std::string system_file;
  std::function<std::string(const char*)> variable;  // its value; empty without
  // The kernel says that we have rights that whoever started us has not (AT_SECURE).
  bool more_rights;
};

// All or nothing: a mistake in any file or variable is an error, since a setting that is left out
// (where the jobs are) would make another machine of this one.
Result<Config> Load(const Surroundings& surroundings = {});

// For a program with more rights than the user whose files and variables `config` was read from, as
// a worker of the daemon is. Every trusted setting (Row::trusted: what is started or loaded with
// those rights, and his limits) is what the machine's own file says of it, or the default; the
// origin says so. Load does it itself where `more_rights` is set. PATH and the loader's variables
// are no settings: who starts such a program gives it an environment of its own.
Status DropUntrusted(Config& config, const Surroundings& surroundings = {});

}  // namespace stasis::config
