// The GPU state of a target away and back, on whichever paths its processes take: the middle of the
// plans of suspend, resume, dump and restore.
#pragma once

#include <algorithm>

#include "gpu_state/gpu_steps.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

// Takes what the data plane carries off what is recorded of each process: the rest is what the
// driver will need. Where the context was kept, nothing of that is in what is recorded.
template <class SharedPath>
void LeaveToDriver(Processes& processes, const SharedPath& shared) {
  for (auto& p : processes) {
    if (!p.context_kept) p.device_bytes -= std::min(p.device_bytes, shared.BytesOf(p.id));
  }
}

// What the driver carries of those that were away before the plan, or of those that were not.
uint64_t DriverBytes(const Processes& processes, bool were_away);

// Up to and with data-commit. `tree_check`, where there is one, runs when nothing of the program
// can reach the GPU any more. `processes` has been through LeaveToDriver, and all must outlive the
// plan. Those that kept their context have no data there any more: the driver takes the rest.
void AddGpuAway(plan::Plan& plan, Services& services, const Processes& processes,
                SharedSuspend& shared, std::optional<plan::Phase> tree_check = {});

// Only the data, up to and with data-commit: no call to the driver. Until it is back, the agents'
// gates alone keep the programs from the GPU.
void AddDataAway(plan::Plan& plan, SharedSuspend& shared, plan::Phase tree_check);

struct GpuBack {
  // Null: the driver brings back all there is.
  SharedResume* shared = nullptr;
  device::GpuMap map;
  uint64_t driver_bytes = 0;  // for the account
  // A restore: how the programs come to be, one after another, and what fills the arenas; both
  // beside the load. Then `processes` is filled in by them, and `driver_bytes_by_gpu` tells before
  // what the driver will need.
  std::vector<plan::Phase> programs = {};
  std::optional<plan::Phase> data_read = {};
  std::map<device::GpuUuid, uint64_t> driver_bytes_by_gpu = {};
  // The last of the phases commits, and the driver's are undone. Otherwise the caller undoes them
  // by ending the program.
  bool commits = true;
};
// Up to the moment when the programs run with all their memory. Where all kept their contexts the
// driver has no part in it.
void AddGpuBack(plan::Plan& plan, Services& services, const Processes& processes, GpuBack back);

// What the driver's restore will need on each GPU, of processes whose state is away.
std::map<device::GpuUuid, uint64_t> DriverBytesByGpu(const Processes& processes,
                                                     const device::GpuMap& map);

}  // namespace stasis::gpu_state
