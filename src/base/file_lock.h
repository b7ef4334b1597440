// flock(2) with a deadline.
#pragma once

#include "base/deadline.h"
#include "base/result.h"

namespace stasis {

// Takes the exclusive lock on the open file behind `fd` without waiting. Returns false if it is
// held elsewhere.
bool TryLock(int fd);
// Waits for the exclusive lock. Returns kDeadlineExceeded if the deadline expires first. In that
// case the open file may still get the lock later and keeps it until its last descriptor is closed,
// so close `fd`.
Status LockUntil(int fd, const Deadline& deadline);

}  // namespace stasis
