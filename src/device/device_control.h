// The vendor seam: the operations of a driver on the GPU state of another process. The layers
// above use only this interface. `cuda/` implements it through a helper process
// (`helper_client.h`), so that a sticky error, crash or hang in the driver costs only a child
// process.
//
// Thread-safe. Calls for different processes run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "device/ids.h"
#include "process/proc.h"
#include "process/tree.h"

namespace stasis::device {

std::string_view StateName(ProcessState state);

// Converts a UUID from the driver's 16 bytes to text.
GpuUuid GpuUuidOf(const uint8_t (&bytes)[16]);
// Converts the text back to 16 bytes. Returns false if it is not "GPU-" followed by 8-4-4-4-12
// hexadecimal digits.
bool GpuUuidBytes(const GpuUuid& uuid, uint8_t (&bytes)[16]);

struct Gpu {
  GpuUuid uuid;
  int index = 0;  // the driver's number of the GPU if no GPU is hidden
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  // The number N in its device file /dev/nvidiaN. Absent if unknown (a software GPU).
  std::optional<int> minor = {};
  // Persistence mode: the GPU stays initialised while no program uses it. Absent if unknown (a
  // software GPU, no NVML).
  std::optional<bool> persistence = {};
};

struct DriverInfo {
  std::string kind;     // the name in abi/driver_kinds.h
  std::string version;  // "580.159.04"
  int api_version = 0;  // 13000
  bool can_checkpoint = false;
  std::string why_not;  // the reason, if checkpointing is not supported
  // True if the driver includes memory imported from other processes in
  // DeviceProcess::device_bytes.
  bool counts_imported = false;
};

// A process that uses the driver, as FindProcesses() found it.
struct DeviceProcess {
  process::ProcessId id;
  ProcessState state = ProcessState::kNone;
  // The GPUs on which it has memory, if the driver reports them; otherwise those whose device files
  // it has open. Empty if the process is checkpointed.
  std::vector<GpuUuid> gpus;
  uint64_t device_bytes = 0;  // GPU memory in use; 0 if unknown
  // Its driver cannot checkpoint it (HIP): only an agent can move its memory.
  bool no_checkpoint = false;
};

// A process that has device files open although the driver does not list it as a user: a child
// forked without exec, or a program that uses only NVML or graphics. CRIU cannot dump it.
struct DeviceFileHolder {
  process::ProcessId id;
  std::string comm;
  std::vector<std::string> files;  // as returned by DeviceFilesHeld()
};

class DeviceControl {
 public:
  virtual ~DeviceControl() = default;

  // Return kUnimplemented if the machine has no driver.
  virtual Result<DriverInfo> Driver() = 0;
  virtual Result<std::vector<Gpu>> Gpus() = 0;

  // Returns kNone for a process that does not use the driver, kNotFound if there is no such
  // process. A process that uses HIP is always running. The steps below return kUnimplemented for
  // it.
  virtual Result<ProcessState> State(process::HostPid pid) = 0;
  // Returns the processes of a tree that use the driver, in the tree's order.
  virtual Result<std::vector<DeviceProcess>> FindProcesses(const process::ProcessTree& tree) = 0;
  // Returns the processes of a tree that would make a dump fail; disjoint from FindProcesses().
  virtual Result<std::vector<DeviceFileHolder>> FindOtherHolders(
      const process::ProcessTree& tree) = 0;
  // Returns kUnimplemented for a process whose driver does not have this step (HIP).
  virtual Status CheckHasStep(std::string_view step, process::HostPid pid) {
    (void)step, (void)pid;
    return {};
  }
  virtual Result<pid_t> RestoreThread(process::HostPid pid) = 0;

  // Running to locked: calls of the process no longer reach the GPU. The driver's own timeout is
  // set too; after kDeadlineExceeded the process is unchanged.
  virtual Status Lock(process::HostPid pid, const Deadline& deadline) = 0;
  // Locked to checkpointed: the GPU's state is in the process's host memory, and the GPU is free.
  // At the deadline the helper is killed, the state is read again, and the error names the state.
  virtual Status Checkpoint(process::HostPid pid, const Deadline& deadline) = 0;
  // Checkpointed to locked. Returns kResourceExhausted if GPU memory is short; on driver 580 the
  // process cannot be restored after that.
  virtual Status Restore(process::HostPid pid, const GpuMap& map, const Deadline& deadline) = 0;
  virtual Status Unlock(process::HostPid pid, const Deadline& deadline) = 0;

  // Continues the queues of a process that uses HIP, which CRIU's plugin stops during a dump and
  // may leave stopped (hip/queues.h). Does nothing if they are not stopped, for a process that has
  // ended, or for one that does not use HIP.
  virtual Status ContinueQueues(process::HostPid pid, const Deadline& deadline) = 0;

  // Returns the files through which a checkpointed process still refers to a GPU: "fd 7 ->
  // /dev/nvidiactl". CRIU would fail on any of them, and the driver's return code does not rule
  // them out.
  virtual Result<std::vector<std::string>> DeviceFilesHeld(process::HostPid pid) = 0;
};

struct ControlOptions {
  // Path of libcuda.so.1. If empty, the loader searches for it.
  std::string library;
  // Time limit for calls without side effects (state, GPUs, cuInit).
  std::chrono::milliseconds query_timeout{20000};
  // How long to wait for a stable driver state after a helper was killed.
  std::chrono::milliseconds settle_timeout{10000};
  // A descriptor that every helper holds until its driver calls for this control have returned, or
  // -1. If the descriptor holds a journal's lock, the lock stays held while a helper is inside the
  // driver.
  int inherit_fd = -1;
  // If both are set, later commands find the helper in this directory (ipc/resident.h), and it
  // exits after this time without a client. Otherwise it exits with the control.
  std::string resident_dir;
  std::chrono::milliseconds idle_timeout{0};
};

// Returns a control that starts its helper at the first call that needs it. On a machine without a
// driver, Driver() returns kUnimplemented and no device processes are found.
std::unique_ptr<DeviceControl> MakeDeviceControl(const ControlOptions& options);

// Asks all helpers of this user in ControlOptions::resident_dir that have no client to exit, kills
// hung ones, and waits for them. Returns the number of helpers stopped.
Result<int> DismissHelpers(const std::string& resident_dir, const Deadline& deadline);

}  // namespace stasis::device
