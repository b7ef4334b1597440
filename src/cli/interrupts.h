// Ctrl-C and its like, as a wish.
#pragma once

namespace stasis::cli {

// From here on they only set what Interrupted() says.
void CatchInterrupts();
bool Interrupted();
// The work is the daemon's: a hang-up, and SIGTERM, only end this command from here on.
void LeaveToDaemon();
// Readable once Interrupted(); -1 before CatchInterrupts.
int InterruptFd();

}  // namespace stasis::cli
