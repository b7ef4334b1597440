// The CUDA implementation of DeviceControl: sends requests to the helper and interprets replies,
// timeouts and crashes.
#pragma once

#include <memory>
#include <optional>

#include "device/cuda/device_files.h"
#include "device/cuda/helper_client.h"
#include "device/device_control.h"

namespace stasis::device::cuda {

class CudaControl : public DeviceControl {
 public:
  explicit CudaControl(ControlOptions options);

  Result<DriverInfo> Driver() override;
  Result<std::vector<Gpu>> Gpus() override;
  Result<ProcessState> State(process::HostPid pid) override;
  Result<std::vector<DeviceProcess>> FindProcesses(const process::ProcessTree& tree) override;
  Result<std::vector<DeviceFileHolder>> FindOtherHolders(const process::ProcessTree& tree) override;
  Status CheckHasStep(std::string_view step, process::HostPid pid) override;
  Result<pid_t> RestoreThread(process::HostPid pid) override;
  Status Lock(process::HostPid pid, const Deadline& deadline) override;
  Status Checkpoint(process::HostPid pid, const Deadline& deadline) override;
  Status Restore(process::HostPid pid, const GpuMap& map, const Deadline& deadline) override;
  Status Unlock(process::HostPid pid, const Deadline& deadline) override;
  Status ContinueQueues(process::HostPid pid, const Deadline& deadline) override;
  Result<std::vector<std::string>> DeviceFilesHeld(process::HostPid pid) override;

  // Returns 0 if no helper is running. For tests.
  Result<pid_t> helper_pid();

 private:
  struct Member;
  Result<HelperClient*> Client();
  Result<wire::Reply> Ask(wire::Request request, const Deadline& deadline);
  Result<wire::Reply> AskProcess(wire::Op op, process::HostPid pid);
  Status Act(wire::Request request, const Deadline& deadline);
  // Determines the state in which the driver left the process after a helper was lost in `op`.
  Result<ProcessState> Settle(wire::Op op, process::HostPid pid);
  Result<ProcessState> AskState(process::HostPid pid, const Deadline& deadline);
  Result<ProcessState> StateOf(process::HostPid pid, const Footprint& footprint);
  Result<std::vector<Member>> Classify(const process::ProcessTree& tree);
  Status AddMemory(DeviceProcess& process, const Footprint& footprint);

  const ControlOptions options_;
  std::mutex mutex_;
  std::unique_ptr<HelperClient> client_;
};

}  // namespace stasis::device::cuda
