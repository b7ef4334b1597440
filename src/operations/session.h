// What one operation works with, and the journal's entry that it holds.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "config/settings.h"
#include "gpu_state/services.h"
#include "operations/result.h"
#include "plan/journal.h"

namespace stasis::operations {

// Makes the services; the helpers that it starts inherit the journal's lock. With `keep_arenas` the
// next suspend of a process finds its arena warm; else it is given back with a resume.
struct Session {
  gpu_state::Services services;
  std::shared_ptr<plan::Journal> journal;
};
Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas = false);
// Runs an operation in a session of its own. If processes of the program started or ended during it
// and everything was rolled back, it is repeated, up to four attempts in all.
Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation);

}  // namespace stasis::operations
