// Events that processes share (cuIpcGetEventHandle). The driver cannot restore its own shared
// events. A shared event is therefore an ordinary event in the owner's process, and an importer
// asks the owner's agent whether the event has been reached.
//
// Differences from the plain driver: a wait for another process's event blocks the calling thread
// instead of its stream, and only the owner may record the event.
#pragma once

#include "agent/cuda/real.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

// The owner calls these.

bool IsSharedEvent(uint64_t id);
// Returns kReady, kGone, kDriver, or kNotNow if the event's last record is not reached yet.
agent_protocol::IpcOutcome LookAtEvent(uint64_t id);

// The importer calls these.

// Waits until another process's event is reached; returns at once for any other event. Returns
// CUDA_ERROR_UNKNOWN if the owner could not be asked or its driver reported an error.
CUresult AwaitTheirs(CUevent event);

// Both sides call these.

// Drops the events of a context that has ended, since the driver destroys them with it.
void IpcEventsEndWith(CUcontext context);
void ResetIpcEvents();

}  // namespace stasis::agent
