// What is remembered of a suspended process while its GPU state is away: how much memory a resume
// will need, and on which GPU. The driver's own state says *that* it is suspended; this only says
// what cannot be asked any more. Of one that kept its context the driver says that it runs: this
// record, and its agent, say that it is suspended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "device/device_control.h"

namespace stasis::gpu_state {

struct SuspendedProcess {
  process::ProcessId id;
  std::vector<device::GpuUuid> gpus;
  uint64_t device_bytes = 0;  // with a context that was kept: of its data alone
  int64_t since_unix_s = 0;
  uint64_t pid_namespace = 0;  // that of `id`; written by SaveSuspended(). 0: unknown
  // A resume onto other GPUs that was undone: the driver has made its new checkpoint there, so for
  // it the process is at NEW what it was at OLD. Empty, or all GPUs (device/gpu_map.h).
  device::GpuMap moved = {};
  bool context_kept = false;  // only its data is away (shared_suspend.h)
  // Which driver has its state, "nvidia 580.159.04"; empty: a Stasis that did not note it suspended
  // it.
  std::string driver = {};
};
// As it is noted.
std::string DriverName(const device::DriverInfo& driver);

Status SaveSuspended(const Paths& paths, const SuspendedProcess& process);
// Absent when another tool suspended it, or a Stasis in another pid namespace: then what a resume
// needs is not known.
std::optional<SuspendedProcess> LoadSuspended(const Paths& paths, const process::ProcessId& id);
Status ForgetSuspended(const Paths& paths, const process::ProcessId& id);
// Of a process whose GPU state is found back although it was away: it is where `map` has sent it,
// and will be there for the driver when it is away again.
Status RememberMove(const Paths& paths, const process::ProcessId& id, const device::GpuMap& map);
// `map` as the driver has to be told it, for which the process may be elsewhere than for us.
device::GpuMap MapForDriver(const Paths& paths, const process::ProcessId& id,
                            const device::GpuMap& map);
// kFailedPrecondition when it is elsewhere: an image of it would name the wrong GPUs.
Status CheckNotMoved(const Paths& paths, const process::ProcessId& id);
// kUnimplemented when another driver than `driver` has its state: what that makes of it is not
// known, and may be final.
Status CheckSameDriver(const Paths& paths, const process::ProcessId& id,
                       const device::DriverInfo& driver);
// All of them that live.
std::vector<SuspendedProcess> ListSuspended(const Paths& paths);
// Forgets processes that have ended; those of other pid namespaces are theirs to judge.
void SweepSuspended(const Paths& paths);

}  // namespace stasis::gpu_state
