// Claims the job that a restore starts again, so that no other command starts it too.
#pragma once

#include <optional>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "jobs/store.h"
#include "operations/restore.h"
#include "store/manifest.h"

namespace stasis::operations {

// Returns the job id that the user asked for, or the one in the image. If both are empty, the job
// gets a new id.
const std::string& WantedJob(const RestoreOptions& options, const store::Manifest& manifest);

// Returns true if the job is alive and Stasis has recorded that its GPU memory was saved and
// released. The job's state in the database is then still "running".
bool IsSuspended(const Paths& paths, const jobs::Job& job);

// Claims the job with that id, so that no other command restores or deletes it. Returns no value if
// there is no such job. Call this before anything slow, so that a second command fails at once.
// Returns kAborted if another command holds the job, and names that command if its journal entry
// can be found. Returns kFailedPrecondition if the job has not ended.
Result<std::optional<jobs::Claim>> HoldJob(const Paths& paths, const std::string& id);

}  // namespace stasis::operations
