// Refuses operations that could make two NCCL jobs on one GPU block each other. The driver no
// longer preempts a kernel of a context that it has restored (driver 580; docs/compatibility.md).
// The kernels of a communicator occupy their GPU until all ranks have arrived, so two jobs with
// restored contexts can wait for each other until the driver kills them (docs/nccl.md). Contexts
// that never left the GPU, including those of --keep-context, are still preempted.
#pragma once

#include <string>

#include "checks/survey.h"
#include "device/device_control.h"
#include "gpu_state/services.h"

namespace stasis::store {
struct Manifest;
}

namespace stasis::checks {

// The processes whose contexts the driver will restore: running ones, whose contexts the operation
// first removes from the GPU, or suspended ones.
enum class NewContexts { kOfRunning, kOfSuspended };

// Returns kFailedPrecondition if a process outside of `survey` has a communicator, and a context on
// a GPU where a rank of the target gets a new context. The error names that process. `map` gives
// the GPUs of the new contexts; `hint` tells the user what to do instead. Communicators are found
// by their sockets in the target's network namespace; processes that the caller may not inspect are
// not found.
Status RefuseNcclNeighbours(gpu_state::Services& services, const Survey& survey,
                            NewContexts new_contexts, const device::GpuMap& map,
                            const std::string& hint);

// Returns true if CRIU's files.img contains a communicator. Returns kInternal if the file does not
// have the format of CRIU 4.
Result<bool> HasCommunicators(int files_img, uint64_t size_bytes);

// Does the same check for the restore of an image into this process's network namespace. Call it
// only if the image has communicators.
Status RefuseNcclNeighbours(gpu_state::Services& services, const store::Manifest& manifest,
                            const device::GpuMap& map, const std::string& hint);

}  // namespace stasis::checks
