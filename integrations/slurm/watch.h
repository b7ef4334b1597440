// Watches files and folders for changes (inotify).
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::slurm {

// Returns an inotify instance that becomes readable after these events (IN_MODIFY, ...) of the file
// or folder. Each user has only 128 instances by default, and an error names that limit.
Result<UniqueFd> Watch(const std::string& path, uint32_t events);

// Reads all events, so that the instance is not readable until the next one.
void ForgetEvents(const UniqueFd& watch);

}  // namespace stasis::slurm
