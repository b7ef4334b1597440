// The driver's steps on all GPU processes of a target, as phases. Each phase works on all processes
// at once, and its undo returns them to the state that was recorded before the first phase.
#pragma once

#include <vector>

#include "gpu_state/services.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

using Processes = std::vector<plan::RecordedProcess>;

// Returns the same processes with "running" as the recorded state.
Processes AsRunning(Processes processes);
// Restores the process's record (suspended.h) as it was before an operation.
Status RestoreSuspendRecord(const Paths& paths, const plan::RecordedProcess& process);

// The phases skip processes that are in the wanted state already. `processes` must outlive the
// plan. It is read when a phase runs, because the processes of a restore exist only after CRIU has
// created them. A restore takes `gpus` and `device_bytes` from the manifest.
plan::Phase GpuLock(Services& services, const Processes& processes);
plan::Phase GpuCheckpoint(Services& services, const Processes& processes, uint64_t bytes);
// Checks that no GPU file is open or mapped any more: CRIU would fail on it, and the GPU would not
// be free.
plan::Phase GpuReleaseCheck(Services& services, const Processes& processes);
inline constexpr const char* kGpuRestore = "gpu-restore";
// Restores all processes, or none if they do not all fit (gpu_room.h).
plan::Phase GpuRestore(Services& services, const Processes& processes, const device::GpuMap& map,
                       uint64_t bytes);
plan::Phase GpuUnlock(Services& services, const Processes& processes);

// The error for a program that cannot be suspended again because some of its processes have their
// memory back: the driver's checkpoint of such memory succeeds, but its restore always fails.
Error PartlyResumed();

// Returns one process to its recorded state from any other state. This is the undo of all phases
// above, and `recover` uses it too. Succeeds for a process that has ended. Returns
// kResourceExhausted if other programs have filled the GPU meanwhile: the process stays suspended,
// and a later call can succeed.
Status ReturnToRecordedState(const Services& services, const plan::RecordedProcess& process);
Status ReturnAllToRecordedState(const Services& services, const Processes& processes);
// Continues the queues of HIP processes, which CRIU's plugin may have left stopped. Call this
// before the GPU state is returned. Does nothing for other processes and ended ones.
Status ContinueAllQueues(const Services& services, const Processes& processes);

}  // namespace stasis::gpu_state
