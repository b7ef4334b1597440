// Room on a GPU for the driver's restore. A restore that runs out of GPU memory is final (driver
// 580), so memory is asked for beforehand, and between the question and the end of the restore no
// other restore of ours may take it: one lock file per GPU, in Paths::run. Whoever keeps another
// state folder, or is no Stasis at all, is not kept out by it.
#pragma once

#include <functional>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "gpu_state/services.h"
#include "plan/journal.h"

namespace stasis::gpu_state {

class GpuRoom {
 public:
  // Takes the locks of all GPUs to which `processes` will be restored and checks that all of them
  // fit; the locks are held as long as the object lives. kResourceExhausted when they do not fit,
  // kDeadlineExceeded when another restore is at it for so long. Of a process that another tool
  // suspended it is not known what it needs: it takes the locks of all GPUs, and is not checked.
  static Result<GpuRoom> Hold(const Services& services,
                              const std::vector<plan::RecordedProcess>& processes,
                              const device::GpuMap& map, const Deadline& deadline);

 private:
  std::vector<UniqueFd> locks_;
};

// The check alone. A process on several GPUs must find at least the sum of its memory there: how it
// was spread over them is not known.
Status CheckRoom(const std::vector<device::Gpu>& gpus,
                 const std::vector<plan::RecordedProcess>& processes, const device::GpuMap& map);

// Runs `check`. If it finds too little room, movers that nobody uses are sent away, for their
// contexts are GPU memory too, and it runs once more.
Status WithIdleMoversAway(const Services& services, const std::function<Status()>& check);

// The same of host memory, for what is kept in arenas without a need.
Status WithUnusedArenasAway(const Services& services, const std::function<Status()>& check);

}  // namespace stasis::gpu_state
