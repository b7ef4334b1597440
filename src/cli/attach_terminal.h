// Connects the user's terminal to a job's: keys go to the program, its output is shown, and it gets
// the window's size.
#pragma once

#include "cli/attach.h"

namespace stasis::cli {

// Returns the window size of this process's terminal; zeros without one.
shim::WindowSize OwnWindowSize();

// Attaches to a running job with a terminal. Only watches if stdin is not a terminal.
Outcome AttachTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       const AttachOptions& options, CaughtSignals signals);

// Does the same over an existing connection that has the input. The local terminal is in raw mode
// meanwhile: all keys go to the program except the detach keys. These, SIGHUP and a lost terminal
// end with result 0.
Outcome StayOnTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       jobs::TerminalClient client, const AttachOptions& options,
                       CaughtSignals signals);

}  // namespace stasis::cli
