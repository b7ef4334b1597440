// Which job a restore brings back, held so that it is brought back once.
#pragma once

#include <optional>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "jobs/store.h"
#include "operations/operations.h"
#include "store/manifest.h"

namespace stasis::operations {

// The name that the job was asked to have, or had; empty: any.
const std::string& WantedJob(const RestoreOptions& options, const store::Manifest& manifest);

// It lives and its GPU memory is away, as Stasis has written down: a running job, for `jobs`.
bool IsSuspended(const Paths& paths, const jobs::Job& job);

// The job of that name, which nobody else restores or deletes before it is let go of; absent where
// there is none. To be asked for before anything that takes its time: whoever is second learns it
// at once. kAborted: another command holds it, and is named where its journal does.
// kFailedPrecondition: it has not ended.
Result<std::optional<jobs::Claim>> HoldJob(const Paths& paths, const std::string& id);

}  // namespace stasis::operations
