// The vendor seam: what a driver can do with the GPU state of another process. The coordinator
// knows this interface and nothing of any vendor; `cuda/` implements it through a helper process
// (`helper_client.h`), because a sticky error, a crash or a hang in a driver must cost a child with
// a deadline, not us.
//
// Threads: any number may call at the same time; calls for different processes run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"
#include "process/tree.h"

namespace stasis::device {

// The driver's states of one process, in its own words; `kNone`: the process does not use this
// driver.
enum class ProcessState : uint8_t { kNone, kRunning, kLocked, kCheckpointed, kFailed };
std::string_view StateName(ProcessState state);

// A GPU's UUID as the driver prints it: "GPU-" and 36 characters. Devices travel as these, never as
// ordinals.
struct GpuUuid {
  std::string value;
  auto operator<=>(const GpuUuid&) const = default;
};

// Of the 16 bytes that a driver's interface gives.
GpuUuid GpuUuidOf(const uint8_t (&bytes)[16]);
// The way back; false when it is not "GPU-" and 8-4-4-4-12 hexadecimal digits.
bool GpuUuidBytes(const GpuUuid& uuid, uint8_t (&bytes)[16]);

struct Gpu {
  GpuUuid uuid;
  int index = 0;  // as the driver counts, with nothing hidden
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  // It stays started when nobody uses it; absent where that cannot be told (softgpu, no NVML).
  std::optional<bool> persistence = {};
};

struct DriverInfo {
  std::string kind;     // "nvidia" or "softgpu"
  std::string version;  // "580.159.04"; softgpu: its own
  int api_version = 0;  // 13000
  bool can_checkpoint = false;
  std::string why_not;  // when it cannot
  // DeviceProcess::device_bytes has memory that the process imported from another one.
  bool counts_imported = false;
};

// A process that uses the driver, as found before anything is done to it.
struct DeviceProcess {
  process::ProcessId id;
  ProcessState state = ProcessState::kNone;
  // Those on which it has memory, where the driver tells; else those whose device files it holds.
  // Empty when checkpointed.
  std::vector<GpuUuid> gpus;
  uint64_t device_bytes = 0;  // GPU memory that it holds, 0 when the driver does not tell
};

// A process that holds device files although the driver does not know it as a user: a child forked
// without exec, or a program that only uses NVML or graphics. CRIU cannot dump it.
struct DeviceFileHolder {
  process::ProcessId id;
  std::string comm;
  std::vector<std::string> files;  // as of DeviceFilesHeld()
};

// OLD to NEW, as the driver's restore takes it: either empty or every GPU of the process once.
using GpuMap = std::vector<std::pair<GpuUuid, GpuUuid>>;

class DeviceControl {
 public:
  virtual ~DeviceControl() = default;

  virtual Result<DriverInfo> Driver() = 0;
  virtual Result<std::vector<Gpu>> Gpus() = 0;

  // kNone for a process without the driver; kNotFound when there is no such process.
  virtual Result<ProcessState> State(process::HostPid pid) = 0;
  // The members of a tree that use the driver, in the tree's order.
  virtual Result<std::vector<DeviceProcess>> FindProcesses(const process::ProcessTree& tree) = 0;
  // The members of a tree that stand in a dump's way; disjoint from FindProcesses().
  virtual Result<std::vector<DeviceFileHolder>> FindOtherHolders(
      const process::ProcessTree& tree) = 0;
  virtual Result<pid_t> RestoreThread(process::HostPid pid) = 0;

  // Running to locked: no call of the process reaches the GPU any more. Has the driver's own
  // timeout too; after kDeadlineExceeded the process is as it was.
  virtual Status Lock(process::HostPid pid, const Deadline& deadline) = 0;
  // Locked to checkpointed: the GPU's state is in the process's own memory, the GPU is free. When
  // the deadline passes the helper is killed, the state is read anew and named in the error.
  virtual Status Checkpoint(process::HostPid pid, const Deadline& deadline) = 0;
  // Checkpointed to locked. kResourceExhausted without enough GPU memory: on driver 580 that is
  // final.
  virtual Status Restore(process::HostPid pid, const GpuMap& map, const Deadline& deadline) = 0;
  virtual Status Unlock(process::HostPid pid, const Deadline& deadline) = 0;

  // What of a process still refers to a GPU although it is checkpointed: "fd 7 -> /dev/nvidiactl".
  // The driver's return code is not trusted for this; CRIU would fail on any of them.
  virtual Result<std::vector<std::string>> DeviceFilesHeld(process::HostPid pid) = 0;
};

struct ControlOptions {
  // Where libcuda.so.1 is; empty: wherever the loader finds it.
  std::string library;
  // How long a question without an effect (state, GPUs, cuInit itself) may take.
  std::chrono::milliseconds query_timeout{20000};
  // After a helper was killed: how long the driver may take to come to rest.
  std::chrono::milliseconds settle_timeout{10000};
  // A descriptor of the caller's that every helper holds too (-1: none). With the lock of a journal
  // in it, the lock stays taken while a helper of ours is still inside the driver.
  int inherit_fd = -1;
};

// Starts the helper at the first call that needs it. A machine without a driver gives a control
// whose Driver() says so (kUnimplemented) and which finds no device processes.
std::unique_ptr<DeviceControl> MakeDeviceControl(const ControlOptions& options);

}  // namespace stasis::device
