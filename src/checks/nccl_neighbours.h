// Refuses operations that would endanger jobs with NCCL on one GPU. A context that the driver has
// restored is no longer preempted in the middle of a kernel (driver 580; docs/compatibility.md).
// The kernels of a communicator keep their GPU until all ranks have arrived, so two jobs with
// restored contexts can wait for each other until the driver kills them (docs/nccl.md). Contexts
// that never left the GPU, also those of --keep-context, are harmless.
#pragma once

#include <string>

#include "checks/survey.h"
#include "device/device_control.h"
#include "gpu_state/services.h"

namespace stasis::store {
struct Manifest;
}

namespace stasis::checks {

// The contexts that the driver will restore: of running processes, which an operation takes away
// for a while, or of suspended ones.
enum class NewContexts { kOfRunning, kOfSuspended };

// kFailedPrecondition names a process outside of `survey` that has a communicator and a context on
// a GPU where a rank of the target gets a new context. `map` gives the GPUs of the new contexts;
// `hint` says what else can be done. Communicators are found by their sockets in the target's
// network namespace; processes that the caller may not inspect are not found.
Status RefuseNcclNeighbours(gpu_state::Services& services, const Survey& survey,
                            NewContexts new_contexts, const device::GpuMap& map,
                            const std::string& hint);

// Returns true if CRIU's files.img has a communicator. kInternal: the file is not as CRIU 4 writes
// it.
Result<bool> HasCommunicators(int files_img, uint64_t size_bytes);

// Does the same for the restore of an image with communicators into our network namespace.
Status RefuseNcclNeighbours(gpu_state::Services& services, const store::Manifest& manifest,
                            const device::GpuMap& map, const std::string& hint);

}  // namespace stasis::checks
