// The driver's steps on all GPU processes of a target, as phases: each on every process at once,
// each undone towards the state that was recorded before the first phase.
#pragma once

#include <vector>

#include "gpu_state/services.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

using Processes = std::vector<plan::RecordedProcess>;

// The same processes, meant to run.
Processes AsRunning(Processes processes);
// What is remembered of the suspended (suspended.h), as it was before an operation on it.
Status RememberAsBefore(const Paths& paths, const plan::RecordedProcess& process);

// Phases. The processes that are in the wanted state already are left alone. `processes` is looked
// at when the phase runs, and must outlive the plan: a restore knows its processes only after CRIU
// has made them; of those it fills in `gpus` and `device_bytes` from the manifest, as of the dump.
plan::Phase GpuLock(Services& services, const Processes& processes);
plan::Phase GpuCheckpoint(Services& services, const Processes& processes, uint64_t bytes);
// No GPU file may be open or mapped any more: CRIU would fail on it, and the GPU would not be free.
plan::Phase GpuReleaseCheck(Services& services, const Processes& processes);
// All processes find room on their GPUs, or none is restored (gpu_room.h).
plan::Phase GpuRestore(Services& services, const Processes& processes, const device::GpuMap& map,
                       uint64_t bytes);
plan::Phase GpuUnlock(Services& services, const Processes& processes);

// Why a program some of whose processes have their memory again cannot go back: the driver's
// checkpoint of such memory succeeds, and its restore never will.
Error HalfWayBack();

// Brings one process back to its recorded state from wherever it is now: the one undo of all of the
// above, used by the plans and by `recover`. A process that has ended is success: nothing is left
// to bring back. kResourceExhausted when somebody else has filled the GPU meanwhile: the process
// stays suspended, and the same call can bring it back later.
Status ReturnToRecordedState(const Services& services, const plan::RecordedProcess& process);
Status ReturnAllToRecordedState(const Services& services, const Processes& processes);

}  // namespace stasis::gpu_state
