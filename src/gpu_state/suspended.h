// Records of suspended processes: the GPU memory that a resume will need, and on which GPUs.
// Whether a process is suspended is known from the driver; the record keeps what cannot be asked
// any more. The driver calls a process with a kept context running, so only the record and its
// agent say that it is suspended.
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
  uint64_t device_bytes = 0;  // with a kept context, of the data only
  int64_t since_unix_s = 0;
  uint64_t pid_namespace = 0;  // the namespace of `id`; written by SaveSuspended(). 0: unknown
  // Set after a resume onto other GPUs was undone: the driver made its new checkpoint there, so for
  // the driver the process is at NEW instead of OLD. Empty, or all GPUs (device/gpu_map.h).
  device::GpuMap moved = {};
  bool context_kept = false;  // only its data is away (shared_suspend.h)
  // The driver that holds its state, for example "nvidia 580.159.04"; empty in records of older
  // versions.
  std::string driver = {};
};
// Returns the name as it is recorded.
std::string DriverName(const device::DriverInfo& driver);

Status SaveSuspended(const Paths& paths, const SuspendedProcess& process);
// Returns nothing if another tool suspended the process, or Stasis in another pid namespace. What a
// resume needs is unknown then.
std::optional<SuspendedProcess> LoadSuspended(const Paths& paths, const process::ProcessId& id);
Status ForgetSuspended(const Paths& paths, const process::ProcessId& id);
// For a process whose state has been moved by `map` and is about to be taken away again: records
// that the driver will have it there.
Status RecordMove(const Paths& paths, const process::ProcessId& id, const device::GpuMap& map);
// Converts `map` to the one that the driver needs, for which the process may be on other GPUs.
device::GpuMap MapForDriver(const Paths& paths, const process::ProcessId& id,
                            const device::GpuMap& map);
// kFailedPrecondition if the driver has the process on other GPUs, which an image would name.
Status CheckNotMoved(const Paths& paths, const process::ProcessId& id);
// kUnimplemented if another driver than `driver` has its state, because a restore by that could be
// final.
Status CheckSameDriver(const Paths& paths, const process::ProcessId& id,
                       const device::DriverInfo& driver);
// Returns the records of live processes.
std::vector<SuspendedProcess> ListSuspended(const Paths& paths);
// Deletes records of ended processes, except those of other pid namespaces.
void SweepSuspended(const Paths& paths);

}  // namespace stasis::gpu_state
