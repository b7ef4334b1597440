// Ctrl-C and similar signals as a request to cancel.
#pragma once

namespace stasis::cli {

// From here on these signals only make Interrupted() return true.
void CatchInterrupts();
bool Interrupted();
// The daemon does the work: from here on SIGHUP and SIGTERM only end this command.
void LeaveToDaemon();
// Readable once Interrupted() is true; -1 before CatchInterrupts.
int InterruptFd();

}  // namespace stasis::cli
