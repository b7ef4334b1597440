// The locks in the directory of jobs; store.h gives the purpose of each.
#pragma once

#include <fcntl.h>

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::jobs {

// The lock file in a job's directory.
inline constexpr char kLockFile[] = "/lock";

// Locks a file. `operation` is that of flock(2). Returns kAborted if it is non-blocking and the
// lock is held.
Result<UniqueFd> LockFile(const std::string& path, int operation, int flags = O_RDWR);

// Locks the store, so that no other process can create or sweep jobs in `folder`, or create the
// database. Blocks until the lock is free. Not recursive.
Result<UniqueFd> LockStore(const std::string& folder);

}  // namespace stasis::jobs
