// The locks of the folder of the jobs: see store.h for what each is for.
#pragma once

#include <fcntl.h>

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::jobs {

// In the folder of a job.
inline constexpr char kLockFile[] = "/lock";

// `operation` is one of flock(2)'s; kAborted when it does not wait and somebody holds it.
Result<UniqueFd> LockFile(const std::string& path, int operation, int flags = O_RDWR);

// While it is held nobody else makes or sweeps jobs in `folder`, or makes their database. Waits for
// it: whoever holds it already must not ask again.
Result<UniqueFd> LockStore(const std::string& folder);

}  // namespace stasis::jobs
