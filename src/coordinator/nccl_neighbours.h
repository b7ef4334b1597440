// Jobs with NCCL that share a GPU. The kernels of a communicator keep their GPU until all ranks
// have come, and on a GPU that two communicators use in turns a suspend of one has ended in launch
// failures, of the other too (docs/nccl.md, driver 580).
#pragma once

#include "coordinator/services.h"
#include "coordinator/survey.h"

namespace stasis::coordinator {

// kUnimplemented names the process, outside of what `survey` has found, which has a communicator
// and memory on a GPU that the target's ranks use. Seen by the sockets of communicators in the
// target's network namespace; processes that the caller may not look into are not seen. Of ranks
// that are suspended nothing is taken from the GPU, but for contexts that were kept, where
// `taken` has them.
enum class Taken { kRunning, kContextsToo };
Status RefuseNcclNeighbours(Services& services, const Survey& survey, Taken taken);

}  // namespace stasis::coordinator
