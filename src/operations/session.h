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
// Runs an operation in a session of its own. When processes of the program came or went in the
// middle of it, and all is as it was before, it is run once more.
Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation);

}  // namespace stasis::operations
