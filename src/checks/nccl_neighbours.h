// Jobs with NCCL that share a GPU. A context that the driver has brought back is not switched away
// in the middle of a kernel any more (driver 580; docs/compatibility.md). The kernels of a
// communicator keep their GPU until all ranks have come: two jobs whose contexts came back so wait
// for each other crosswise, until the driver ends them (docs/nccl.md). Contexts that never left,
// and those of --keep-context, do no harm.
#pragma once

#include <string>

#include "checks/survey.h"
#include "device/device_control.h"
#include "gpu_state/services.h"

namespace stasis::store {
struct Manifest;
}

namespace stasis::checks {

// Whose contexts the driver makes anew: those that an operation takes away for a while, or those
// that are away.
enum class Anew { kOfRunning, kOfAway };

// kFailedPrecondition names the process, outside of what `survey` has found, which has a
// communicator and a context on a GPU where a rank of the target gets a new one; `map`: where it
// gets it; `hint`: what else can be done. Seen by the sockets of communicators in the target's
// network namespace; processes that the caller may not look into are not seen.
Status RefuseNcclNeighbours(gpu_state::Services& services, const Survey& survey, Anew anew,
                            const device::GpuMap& map, const std::string& hint);

// A communicator is in CRIU's files.img. kInternal: that is not as CRIU 4 writes it.
Result<bool> HasCommunicators(int files_img, uint64_t size_bytes);

// The same of a restore of an image with communicators into our network namespace.
Status RefuseNcclNeighbours(gpu_state::Services& services, const store::Manifest& manifest,
                            const device::GpuMap& map, const std::string& hint);

}  // namespace stasis::checks
