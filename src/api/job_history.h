// Records successful operations, and the copies of their images, in a job's list of checkpoints.
#pragma once

#include <optional>
#include <string>

#include "api/repository_choice.h"
#include "base/paths.h"
#include "jobs/job.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Adds a suspend to the job's checkpoints. A dump has added its checkpoint at its commit; this
// function adds the account to it. A failed write becomes a note of `result`, because the operation
// itself succeeded.
void RecordOperation(const Paths& paths, v1::OperationResult& result);

// Records that the image at `path`, which a dump of a job made, was copied to the repository as
// `name`. A failed write becomes a note of `result`.
void RecordCopy(const Paths& paths, const std::string& path,
                const repository::Registration& repository, const std::string& name,
                v1::OperationResult& result);

// Returns true if the checkpoint's image is on this machine.
bool ImageExists(const jobs::Checkpoint& checkpoint);

// Returns the copy of the job's latest image in a repository, if the image itself was deleted.
// Returns nullopt in all other cases, also if there is no such job.
std::optional<RemoteImage> CopyOfJob(const Paths& paths, const std::string& job);

}  // namespace stasis::api
