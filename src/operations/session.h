// A session holds the services and the journal entry of one operation.
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
  // An earlier attempt could not receive CPU memory, so CRIU writes it to the store.
  bool cpu_memory_to_store = false;
  gpu_state::Services services;
  std::shared_ptr<plan::Journal> journal;
  std::shared_ptr<criu::Criu> criu = criu::MakeCriu();
  std::shared_ptr<RestoreHosts> restore_hosts = MakeRestoreHosts();
};
// Makes the services and a journal entry. Helpers that are started later inherit the journal's
// lock. With `keep_arenas`, a resume keeps the arenas, so that the next suspend need not allocate
// host memory again. Otherwise a resume frees the arenas.
Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas = false);
// Runs an operation in a new session. Repeats an operation that was rolled back because processes
// of the program started or ended, or because its CPU memory could not be received; up to four
// attempts in all.
Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation);

}  // namespace stasis::operations
