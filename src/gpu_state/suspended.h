// Records of suspended processes: the GPU memory that a resume will need, and on which GPUs. The
// driver reports whether a process is suspended, but not its memory and GPUs. It reports a process
// with a kept context as running, so only the record and the agent show that it is suspended.
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
  uint64_t device_bytes = 0;  // with a kept context, only the bytes of the data
  int64_t since_unix_s = 0;
  uint64_t pid_namespace = 0;  // the namespace of `id`, set by SaveSuspended(); 0 if unknown
  std::string boot_id = {};    // as pid_namespace; empty if unknown
  // Set after a resume onto other GPUs was undone: the driver made its new checkpoint there, so it
  // has the state on GPU NEW instead of OLD. Empty, or all GPUs (device/gpu_map.h).
  device::GpuMap moved = {};
  bool context_kept = false;  // only its data is away (shared_suspend.h)
  // The driver that holds its state, for example "nvidia 580.159.04"; empty in records of older
  // versions.
  std::string driver = {};
  std::vector<device::GpuUuid> visible = {};  // see plan::RecordedProcess
};
// Returns the name of a driver for SuspendedProcess::driver.
std::string DriverName(const device::DriverInfo& driver);

Status SaveSuspended(const Paths& paths, const SuspendedProcess& process);
// Returns nothing if the process was suspended by another tool, or by Stasis in another pid
// namespace or on another machine. The needs of a resume are then unknown.
std::optional<SuspendedProcess> LoadSuspended(const Paths& paths, const process::ProcessId& id);
Status ForgetSuspended(const Paths& paths, const process::ProcessId& id);
// Records that the state of a process was moved by `map`. Called before the driver checkpoints the
// process again, because the driver will then have its state on the new GPUs.
Status RecordMove(const Paths& paths, const process::ProcessId& id, const device::GpuMap& map);
// Converts the user's `map` to the driver's. They differ after a failed move: the user's map names
// the GPUs that the process was suspended on, but the driver now has its state on others.
device::GpuMap MapForDriver(const Paths& paths, const process::ProcessId& id,
                            const device::GpuMap& map);
// Returns kFailedPrecondition if a failed move has left the driver's state of the process on other
// GPUs than the recorded ones: an image would name the wrong GPUs.
Status CheckNotMoved(const Paths& paths, const process::ProcessId& id);
// Returns kUnimplemented if the process's state was saved by a driver other than `driver`. A
// restore by `driver` could fail and destroy the state.
Status CheckSameDriver(const Paths& paths, const process::ProcessId& id,
                       const device::DriverInfo& driver);
// Returns the records of live processes.
std::vector<SuspendedProcess> ListSuspended(const Paths& paths);
// Deletes records of ended processes, except those of other pid namespaces and boots: machines may
// share the folder.
void SweepSuspended(const Paths& paths);

}  // namespace stasis::gpu_state
