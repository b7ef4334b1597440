// Events that processes share (cuIpcGetEventHandle). The driver cannot restore its own shared
// events. A shared event is therefore an ordinary event in the owner's process, and an importer
// asks the owner's agent whether the event has completed.
//
// Differences from the plain driver: a wait for another process's event blocks the calling thread
// instead of its stream, and only the owner may record the event.
#pragma once

#include "agent/cuda/real.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

// The owner of the event calls the following functions.

bool IsSharedEvent(uint64_t id);
// Returns kReady, kGone, kDriver, or kNotNow if the event's last record has not completed yet.
agent_protocol::IpcOutcome LookAtEvent(uint64_t id);

// The importer calls the following function.

// Waits until another process's event has completed; returns at once for any other event. Returns
// CUDA_ERROR_UNKNOWN if the owner could not be asked or its driver reported an error.
CUresult AwaitTheirs(CUevent event);

// Owner and importer call the following functions.

// Drops the events of a context that has ended, since the driver destroys them with it.
void IpcEventsEndWith(CUcontext context);
void ResetIpcEvents();

}  // namespace stasis::agent
