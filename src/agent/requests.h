// The requests of a client, and what they do to the gate and to the memory; one function each.
// There is one client at a time, and a second one is rejected. When a client disconnects too early,
// its work is undone as far as possible (the states in agent_protocol/protocol.h).
//
// All functions except ResetRequests run on the control thread (control.h).
#pragma once

namespace stasis::agent {

// Takes the socket that came through the door. Rejects it while there is a client.
void AdmitClient(int socket);
// Returns the client's socket, to be polled, or -1 when there is no client.
int ClientSocket();
// Handles a request or the end of the client, after ClientSocket became readable.
void HearClient();

// Returns true when the gate could not be opened after the client had gone. No event tells when
// opening will succeed, so it is tried again every kReopenAgainMs.
bool ReopenIsDue();
constexpr int kReopenAgainMs = 100;
// Tries to open the gate without a client.
void ReopenAlone();

// For a forked child: there is no client, and the state is kOpen.
void ResetRequests();

}  // namespace stasis::agent
