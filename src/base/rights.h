// The capabilities that allow an unprivileged user to dump and restore. CRIU gets them while it
// runs; no other child process does, in particular not the restored program. CRIU gets
// CAP_NET_ADMIN only to keep TCP connections. For root the functions that change capabilities do
// nothing.
#pragma once

#include "base/result.h"

namespace stasis {

enum class Right : int {
  kNetwork = 12,            // CAP_NET_ADMIN
  kTrace = 19,              // CAP_SYS_PTRACE
  kAdministrate = 21,       // CAP_SYS_ADMIN
  kCheckpointRestore = 40,  // CAP_CHECKPOINT_RESTORE
};

// Call first in main(), before other threads start. For an unprivileged user, keeps
// CAP_CHECKPOINT_RESTORE and CAP_NET_ADMIN if present and drops all others. Keeps CAP_SYS_PTRACE
// only if Yama requires it (TracingIsRestricted); otherwise the kernel itself denies access to
// processes that gained privileges. Child processes inherit none.
void HoldRights();

// Returns true if this process has the capability in effect.
bool HasRight(Right right);

// Returns true if kernel.yama.ptrace_scope is 1 or more: tracing even the user's own processes then
// requires CAP_SYS_PTRACE.
bool TracingIsRestricted();

struct PassedRights {
  bool trace = false;    // CAP_SYS_PTRACE too
  bool network = false;  // CAP_NET_ADMIN too
};

// Call between fork and exec: passes CAP_CHECKPOINT_RESTORE and the named capabilities to the new
// program, as far as HoldRights has kept them. Async-signal-safe.
void PassRightsOn(PassedRights passed);

// Drops all capabilities kept by HoldRights for good.
void DropRights();

}  // namespace stasis
