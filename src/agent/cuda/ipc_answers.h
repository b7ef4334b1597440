// Answers to agents that wait for an event which this process shares. One thread sends all of them
// when the events have completed.
#pragma once

#include <cstdint>

#include "agent/descriptors.h"
#include "agent/futex.h"

namespace stasis::agent {

extern Mutex g_ipc_answers_mutex;  // exported for forks; taken after g_ipc_server_mutex

// Sends kReady over a duplicate of the socket as soon as the event's last record has completed, or
// kGone if the event does not exist. Sends nothing if the other end is closed first. Returns false
// if too many agents wait, or if no thread, descriptor or host memory is available.
bool AnswerWhenReached(const Watched& socket, uint64_t id);
// Waits until all answers are sent. All submitted work must have finished.
void EndIpcAnswers();

void ResetIpcAnswers();

}  // namespace stasis::agent
