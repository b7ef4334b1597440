// Answers to those who wait for an event that this process shares: given when it is reached, by one
// thread for all of them.
#pragma once

#include <cstdint>

#include "agent/descriptors.h"

namespace stasis::agent {

// Sends kReady over a duplicate of the socket when what was last recorded of the event is reached
// (kGone: there is none), unless the other end is closed before. false: it cannot, or too many
// wait.
bool AnswerWhenReached(const Watched& socket, uint64_t id);
// Returns when no such answer is left to give: all work is done.
void EndIpcAnswers();

void ResetIpcAnswers();

}  // namespace stasis::agent
