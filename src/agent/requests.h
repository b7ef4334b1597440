// Handles the requests of a client, with one function for each request. There is one client at a
// time, and a second one is rejected. When a client disconnects too early, its work is undone as
// far as possible (the states in agent_protocol/protocol.h).
//
// All functions except ResetRequests run on the control thread (control.h).
#pragma once

namespace stasis::agent {

// Accepts the client of this socket, which was received over the control socket. Rejects it if
// another client is connected. Takes ownership of the socket.
void AdmitClient(int socket);
// Returns the client's socket, to be polled, or -1 when there is no client.
int ClientSocket();
// Handles a request or the end of the client, after ClientSocket became readable.
void HearClient();

// Returns true while the program's memory is released.
bool MemoryIsAway();

// Returns true if the client has disconnected and the gate could not be opened yet. No event
// reports when that can succeed, so it is retried every kReopenAgainMs.
bool ReopenIsDue();
constexpr int kReopenAgainMs = 100;
// Tries to open the gate without a client.
void ReopenAlone();

// Drops the client and returns to kOpen, in a forked child.
void ResetRequests();

}  // namespace stasis::agent
