// A session is what one operation works with: the services and its journal entry.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "config/settings.h"
#include "criu/criu.h"
#include "gpu_state/services.h"
#include "operations/restore_host.h"
#include "operations/result.h"
#include "plan/journal.h"

namespace stasis::operations {

struct Session {
  gpu_state::Services services;
  std::shared_ptr<plan::Journal> journal;
  std::shared_ptr<criu::Criu> criu = criu::MakeCriu();
  std::shared_ptr<RestoreHosts> restore_hosts = MakeRestoreHosts();
};
// Makes the services. The helpers that it starts inherit the journal's lock. With `keep_arenas` the
// next suspend of a process reuses its touched arena; otherwise a resume gives the arena back.
Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas = false);
// Runs an operation in a new session. If processes of the program started or ended during it
// and everything was rolled back, it is repeated, up to four attempts in all.
Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation);

}  // namespace stasis::operations
