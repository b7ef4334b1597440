// Serves the watcher: a connection beside that of the client, over which a daemon learns what the
// program waits for, and answers allocations that found no GPU memory. There is one watcher at a
// time, and a second one is rejected.
//
// All functions except NoteNews and ResetWatcher run on the control thread (control.h).
#pragma once

namespace stasis::agent {

// Returns true if this socket, which was received over the control socket, is a watcher's.
bool IsWatcher(int socket);
// Accepts the watcher of this socket. Rejects it if another watcher is connected. Takes ownership
// of the socket.
void AdmitWatcher(int socket);

// Returns the watcher's socket and the events to poll for, or -1 when there is no watcher.
int WatcherSocket();
short WatcherEvents();
// Handles a packet or the end of the watcher, after its socket became ready.
void HearWatcher();
// Tells the watcher what the program wants, if that has changed since it was last told. Call this
// before each poll.
void TellWatcher();

// Call this when what the program wants may have changed: wakes the control thread if a watcher is
// connected. Safe to call from any thread.
void NoteNews();

// Drops the watcher, in a forked child.
void ResetWatcher();

}  // namespace stasis::agent
