// The phases that save and release a target's GPU state, and those that bring it back, by the
// shared or the opaque path of each process. They are the middle part of the plans of suspend,
// resume, dump and restore.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpu_state/gpu_steps.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

// Subtracts the bytes that movers carry from each process's device_bytes, which then are the bytes
// that the driver will need. The device_bytes of a kept context do not include them.
template <class SharedPath>
void SubtractShared(Processes& processes, const SharedPath& shared) {
  for (auto& p : processes) {
    if (!p.context_kept) p.device_bytes -= std::min(p.device_bytes, shared.BytesOf(p.id));
  }
}

// Returns the number of bytes that the driver carries: those of the processes that were
// checkpointed before the plan if `were_away` is true, otherwise those of the other processes.
uint64_t DriverBytes(const Processes& processes, bool were_away);

// Adds the phases up to and including data-commit. `tree_check` runs when no call of the program
// can reach the GPU any more. `processes` is the result of SubtractShared; all arguments must
// outlive the plan. The data of processes that kept their context is not on the GPU any more, and
// the driver carries what they still have there. With `precopy`, data is also copied before the
// gates close, so that programs are stopped for a shorter time but the operation takes longer.
// `before_stop` runs when the memory for their data is reserved, before the programs are stopped.
void AddGpuAway(plan::Plan& plan, Services& services, Processes& processes, SharedSuspend& shared,
                std::optional<plan::Phase> tree_check = {}, bool precopy = false,
                std::optional<plan::Phase> before_stop = {});

// Adds the phases for the data alone, up to and including data-commit, without a call to the
// driver. Until the data is back, only the agents' gates keep the programs from the GPU.
void AddDataAway(plan::Plan& plan, SharedSuspend& shared, plan::Phase tree_check,
                 std::optional<plan::Phase> before_stop = {});

struct GpuBack {
  // Null: the driver restores everything.
  SharedResume* shared = nullptr;
  device::GpuMap map;
  uint64_t driver_bytes = 0;  // reported by the restore phase
  // Only for a restore. `programs` create the programs, in order, and fill in `processes`;
  // `data_read` fills the arenas. Both run in parallel with the load. Until `processes` is filled
  // in, `driver_bytes_by_gpu` gives the memory that the driver will need.
  std::vector<plan::Phase> programs = {};
  std::optional<plan::Phase> data_read = {};
  // The name of the phase of `programs` that runs the driver's restore as a nested phase. Empty: it
  // follows the `programs`. Only with `shared`.
  std::string restore_within = {};
  std::map<device::GpuUuid, uint64_t> driver_bytes_by_gpu = {};
  // CRIU's plugin has restored what the driver of other programs restores (HIP).
  bool without_driver = false;
  // If true, the last phase commits and the driver's phases have an undo. Otherwise the caller
  // undoes them by killing the program.
  bool commits = true;
};
// Adds the phases until the programs run with all their memory. If all of them kept their contexts,
// the driver is not called.
void AddGpuBack(plan::Plan& plan, Services& services, const Processes& processes, GpuBack back);

// Returns how many bytes the driver's restore of checkpointed processes will need on each GPU.
std::map<device::GpuUuid, uint64_t> DriverBytesByGpu(const Processes& processes,
                                                     const device::GpuMap& map);

}  // namespace stasis::gpu_state
