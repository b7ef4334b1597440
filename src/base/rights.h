// The capabilities by which a user who is not root may dump and restore, and who has them when.
// CRIU gets them, for as long as it works; nothing else that we start does, least of all the
// program. Of root all of this is true and does nothing.
#pragma once

#include "base/result.h"

namespace stasis {

enum class Right : int {
  kTrace = 19,              // CAP_SYS_PTRACE
  kAdministrate = 21,       // CAP_SYS_ADMIN
  kCheckpointRestore = 40,  // CAP_CHECKPOINT_RESTORE
};

// To be called first in a program of ours, before it has threads. Of a user who is not root it
// keeps CAP_CHECKPOINT_RESTORE, where there is one, and lets go of all others. CAP_SYS_PTRACE is
// kept only where the kernel's yama asks for it (TracingIsRestricted): everywhere else it is the
// kernel itself that says no when a process has become more than its user's. Programs that we start
// inherit none.
void HoldRights();

// This process has it, in effect.
bool HasRight(Right right);

// kernel.yama.ptrace_scope is 1 or more: not even a user's own processes may be stopped and looked
// into by another one of his, but with CAP_SYS_PTRACE.
bool TracingIsRestricted();

// Between fork and exec: the program that follows gets what HoldRights has kept; without `trace`
// not CAP_SYS_PTRACE. Async-signal-safe.
void PassRightsOn(bool trace);

// Gives up all that HoldRights has kept, for good.
void DropRights();

}  // namespace stasis
