// The capabilities that allow an unprivileged user to dump and restore. CRIU gets them while it
// runs; no other child process does, in particular not the restored program. For root the functions
// that change capabilities do nothing.
#pragma once

#include "base/result.h"

namespace stasis {

enum class Right : int {
  kTrace = 19,              // CAP_SYS_PTRACE
  kAdministrate = 21,       // CAP_SYS_ADMIN
  kCheckpointRestore = 40,  // CAP_CHECKPOINT_RESTORE
};

// Call first in main(), before other threads start. For an unprivileged user, keeps
// CAP_CHECKPOINT_RESTORE if present and drops all other capabilities. Keeps CAP_SYS_PTRACE only if
// Yama requires it (TracingIsRestricted); otherwise the kernel itself denies access to processes
// that gained privileges. Child processes inherit none.
void HoldRights();

// Returns true if this process has the capability in effect.
bool HasRight(Right right);

// Returns true if kernel.yama.ptrace_scope is 1 or more: tracing even the user's own processes then
// requires CAP_SYS_PTRACE.
bool TracingIsRestricted();

// Call between fork and exec: passes the capabilities kept by HoldRights to the new program,
// without CAP_SYS_PTRACE unless `trace` is set. Async-signal-safe.
void PassRightsOn(bool trace);

// Drops all capabilities kept by HoldRights for good.
void DropRights();

}  // namespace stasis
