// What a client asks for, and what that does to the gate and to the memory: each request a
// function. One client at a time; who comes meanwhile is told so. When it ends too early, what it
// has begun is undone as far as that can be.
//
// All of it on the control thread (control.h), but for ResetRequests.
#pragma once

namespace stasis::agent {

// Takes the socket of one who has knocked.
void AdmitClient(int socket);
// To be polled; -1: nobody is there.
int ClientSocket();
// There is something to be read from it, or it has ended.
void HearClient();

// Nobody is there to be told that opening the gate failed, and nothing tells when it will succeed.
bool ReopenIsDue();
constexpr int kReopenAgainMs = 100;
void ReopenAlone();

// In the child after fork: there is no client, and the gate is open.
void ResetRequests();

}  // namespace stasis::agent
