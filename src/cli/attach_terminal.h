// A user's terminal in the place of a job's: what is typed goes to the program, what it writes is
// shown, and the window's size is the program's.
#pragma once

#include "cli/attach.h"

namespace stasis::cli {

// The size of our own terminal's window; zeros without one.
shim::WindowSize OwnWindowSize();

// Attaches to a running job that has a terminal. Without a terminal on stdin it only watches.
Outcome AttachTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       const AttachOptions& options, CaughtSignals signals);

// The same over a connection that is there already, as the one who has the input. Our terminal is
// raw meanwhile: its keys are the program's but for the detach keys, which end with 0 as a SIGHUP
// and a terminal that is gone do.
Outcome StayOnTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       jobs::TerminalClient client, const AttachOptions& options,
                       CaughtSignals signals);

}  // namespace stasis::cli
