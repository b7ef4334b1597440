// The contexts that the program has made active, and waiting for the work in them.
#pragma once

#include "agent/cuda/real.h"
#include "agent/vector.h"

namespace stasis::agent {

void NoteContext(CUcontext context, CUdevice device);
// Some context on the device that exists, for the control thread to work in; null: none.
CUcontext ContextOn(CUdevice device);
CUcontext AnyContext();

struct ContextEntry {
  CUcontext context;
  CUdevice device;
};
// All of them; false: no memory.
bool ListContexts(Vector<ContextEntry>* out);

// Waits for everything in the context, whichever is current now.
CUresult SynchronizeContext(CUcontext context);

// While the gate is closed: waits for the work in every context, each on a thread of its own, for a
// kernel may never end and nothing ends a wait for it. false at `deadline_ns`; *error is the first
// error that a context answered with, which also ends the wait.
bool DrainContexts(int64_t deadline_ns, CUresult* error);

void ResetContexts();

}  // namespace stasis::agent
