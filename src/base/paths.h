// Where Stasis keeps things. Two roots: what means nothing after a reboot (journals, locks) and
// what must survive one (jobs, images). `STASIS_STATE_DIR` moves both below one folder.
//
//   run   root: /run/stasis       others: DATA/run                   $STASIS_STATE_DIR/run
//   data  root: /var/lib/stasis   others: $XDG_STATE_HOME/stasis     $STASIS_STATE_DIR/data
//                                         or ~/.local/state/stasis
#pragma once

#include <string>

#include "base/result.h"

namespace stasis {

struct Paths {
  std::string run;
  std::string data;

  std::string journal() const { return run + "/journal"; }
  std::string jobs() const { return data + "/jobs"; }
  std::string images() const { return data + "/images"; }
  std::string movers() const { return run + "/movers"; }
};

// Reads the environment and makes the folders (mode 0700; DATA 0711).
Result<Paths> OpenPaths();

}  // namespace stasis
