// Records successful operations, and the copies of their images, in a job's list of checkpoints.
#pragma once

#include <optional>
#include <string>

#include "api/repository_choice.h"
#include "base/paths.h"
#include "jobs/job.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Adds a suspend to the job's checkpoints. A dump added its checkpoint when it committed, so this
// function only adds the account to that checkpoint. If the write fails, adds a note to `result`,
// because the operation itself succeeded.
void RecordOperation(const Paths& paths, v1::OperationResult& result);

// Records that the job's image at `path` was copied to the repository as `name`. If the write
// fails, adds a note to `result`.
void RecordCopy(const Paths& paths, const std::string& path,
                const repository::Registration& repository, const std::string& name,
                v1::OperationResult& result);

// Returns true if the checkpoint's image is on this machine.
bool ImageExists(const jobs::Checkpoint& checkpoint);

// Returns the copy of the job's latest image in a repository, if the image itself was deleted.
// Returns nullopt in all other cases, including when there is no such job.
std::optional<RemoteImage> CopyOfJob(const Paths& paths, const std::string& job);

}  // namespace stasis::api
