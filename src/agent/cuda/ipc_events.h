// Events that processes share (cuIpcGetEventHandle), without the driver's doing, which could not
// bring them back: at home such an event is an ordinary one, and whoever has opened it asks its
// owner's agent when to go on.
//
// What differs from the plain driver: a wait for another process's event holds up the calling
// thread, not its stream; and only the owner may record it.
#pragma once

#include "agent/cuda/real.h"
#include "wire/protocol.h"

namespace stasis::agent {

// ---- the owner's side

bool IsSharedEvent(uint64_t id);
// kReady, kGone, kDriver, or kNotNow: what was last recorded of it is not reached yet.
wire::IpcOutcome LookAtEvent(uint64_t id);

// ---- the importer's side

// Returns when the event is reached, if it is another process's; at once, if it is not.
// CUDA_ERROR_UNKNOWN: its owner could not be asked, or its driver does not know.
CUresult AwaitTheirs(CUevent event);

// ---- both

// The driver ends a context's events with it.
void IpcEventsEndWith(CUcontext context);
void ResetIpcEvents();

}  // namespace stasis::agent
