#include "base/paths.h"

#include <unistd.h>

#include <cstdlib>

#include "base/file.h"

namespace stasis {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<Paths> Locate() {
  if (auto state = Env("STASIS_STATE_DIR"); !state.empty()) {
    state = AbsolutePath(state);
    return Paths{state + "/run", state + "/data"};
  }
  if (::geteuid() == 0) return Paths{"/run/stasis", "/var/lib/stasis"};
  Paths paths;
  auto state = Env("XDG_STATE_HOME"), home = Env("HOME");
  if (state.empty() && !home.empty()) state = home + "/.local/state";
  if (state.empty()) {
    return Fail(Code::kFailedPrecondition, "there is no folder to keep jobs and images in",
                "set HOME, XDG_STATE_HOME or STASIS_STATE_DIR");
  }
  paths.data = state + "/stasis";
  // Not $XDG_RUNTIME_DIR: it goes at logout, and cron has none. The journal must be one for all.
  paths.run = paths.data + "/run";
  return paths;
}

}  // namespace

Result<Paths> OpenPaths() {
  STASIS_ASSIGN(Paths paths, Locate());
  // To be walked through, not to be listed: programs of any user load the agent from below it. All
  // that is in it but the agent has 0700.
  STASIS_TRY(MakeDirs(paths.data, 0711));
  for (const auto& dir : {paths.run, paths.journal(), paths.jobs(), paths.images()}) {
    STASIS_TRY(MakeDirs(dir, 0700));
  }
  return paths;
}

}  // namespace stasis
