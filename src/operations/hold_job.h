// The job that a restore starts again, claimed so that it is started only once.
#pragma once

#include <optional>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "jobs/store.h"
#include "operations/restore.h"
#include "store/manifest.h"

namespace stasis::operations {

// Returns the id that the user asked for, or the one in the image; empty: a new one.
const std::string& WantedJob(const RestoreOptions& options, const store::Manifest& manifest);

// Returns true if the job is alive and Stasis has recorded that its GPU memory is away. `jobs`
// calls such a job running.
bool IsSuspended(const Paths& paths, const jobs::Job& job);

// Claims the job with that id, so that no other command restores or deletes it; returns nothing if
// there is none. Call it before anything slow, so that a second command fails at once. kAborted
// names the command that holds the job, if its journal does. kFailedPrecondition: the job has not
// ended.
Result<std::optional<jobs::Claim>> HoldJob(const Paths& paths, const std::string& id);

}  // namespace stasis::operations
