// Turns Ctrl-C and similar signals into requests to cancel.
#pragma once

namespace stasis::cli {

// After this call, SIGINT, SIGTERM, SIGHUP and SIGQUIT only make Interrupted() return true.
void CatchInterrupts();
bool Interrupted();
// Call this if the daemon does the work. SIGHUP and SIGTERM then end only this command.
void LeaveToDaemon();
// Reverses LeaveToDaemon(). Call this when the daemon's part is over and this command does more
// work.
void TakeBackFromDaemon();
// Readable once Interrupted() is true; -1 before CatchInterrupts.
int InterruptFd();

}  // namespace stasis::cli
