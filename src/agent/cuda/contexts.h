// Tracks the contexts that the program uses, and waits for the work in them.
#pragma once

#include "agent/cuda/real.h"
#include "agent/vector.h"

namespace stasis::agent {

// Adds a context to the table if it is new. Notes a blocker if host memory for the entry cannot be
// allocated.
void NoteContext(CUcontext context, CUdevice device);
// Returns a context on the device, for the control thread to work in, or null.
CUcontext ContextOn(CUdevice device);
CUcontext AnyContext();

struct ContextEntry {
  CUcontext context;
  CUdevice device;
};
// Lists all contexts. Returns false if host memory for the list cannot be allocated.
bool ListContexts(Vector<ContextEntry>* out);

// In a process that uses HIP: calls `reset`, which destroys everything that the program has on the
// current device. The device stays in the table.
CUresult EndCurrentDevice(CUresult (*reset)());

// Waits for all work in the context, which need not be current.
CUresult SynchronizeContext(CUcontext context);

// Waits for the work in every context, on one thread per context, since a kernel may never end and
// the wait for it cannot be cancelled. The gate must be closed. Returns false at `deadline_ns`, or
// with the first error of a context in *error.
bool DrainContexts(int64_t deadline_ns, CUresult* error);

void ResetContexts();

}  // namespace stasis::agent
