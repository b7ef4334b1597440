// Reserves GPU memory for the driver's restore. If the driver's restore runs out of GPU memory, it
// cannot be tried again (driver 580). So free memory is checked first, and a lock file for each GPU
// in Paths::run keeps other restores from taking it until the restore has ended. The locks do not
// cover other state folders or other programs.
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
  // fit. Holds the locks while the object exists. Returns kResourceExhausted if they do not fit and
  // kDeadlineExceeded if another restore holds a lock. If another tool has suspended a process, its
  // needs are unknown: all GPUs are locked, and its memory is not checked.
  static Result<GpuRoom> Hold(const Services& services,
                              const std::vector<plan::RecordedProcess>& processes,
                              const device::GpuMap& map, const Deadline& deadline);

 private:
  std::vector<UniqueFd> locks_;
};

// Checks the free memory without taking locks. A process on several GPUs fits if those GPUs
// together have enough room, because its share on each is not known.
Status CheckRoom(const std::vector<device::Gpu>& gpus,
                 const std::vector<plan::RecordedProcess>& processes, const device::GpuMap& map);

// Runs `check`. If it returns kResourceExhausted, stops idle movers, whose contexts take GPU
// memory, and runs it again.
Status RetryWithoutIdleMovers(const Services& services, const std::function<Status()>& check);

// Like RetryWithoutIdleMovers, for host memory: frees unused arenas before it runs `check` again.
Status RetryWithoutUnusedArenas(const Services& services, const std::function<Status()>& check);

}  // namespace stasis::gpu_state
