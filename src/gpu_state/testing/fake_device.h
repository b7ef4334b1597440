// A fake driver for a Program: its calls change the states of the processes. A call on process 1 is
// "device Lock 1" in the CallLog.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "device/device_control.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"
#include "process/end.h"

namespace stasis::fakes {

class FakeDevice final : public device::DeviceControl {
 public:
  FakeDevice(Program& program, CallLog& log) : program_(program), log_(log) {}

  // Tests set these while no operation is running.
  device::DriverInfo driver{.kind = "fake", .version = "1", .can_checkpoint = true};
  std::vector<device::Gpu> gpus = {{GpuA(), 0, "model", 80ull << 30, 80ull << 30},
                                   {GpuB(), 1, "model", 80ull << 30, 80ull << 30}};
  std::vector<device::DeviceFileHolder> other_holders;
  bool no_checkpoint = false;  // for all processes
  bool no_restore_thread = false;

  Result<device::DriverInfo> Driver() override { return driver; }
  Result<std::vector<device::Gpu>> Gpus() override { return gpus; }
  Result<device::ProcessState> State(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = program_.Find(pid);
    if (process == nullptr || !process->uses_gpu) return device::ProcessState::kNone;
    if (!process::IsAlive(process->id)) {
      return Fail(Code::kNotFound, Domain::kProcess, 0, "no such process");
    }
    return process->state;
  }
  Result<std::vector<device::DeviceProcess>> FindProcesses(
      const process::ProcessTree& tree) override {
    std::lock_guard lock(program_.mutex);
    std::vector<device::DeviceProcess> found;
    for (const auto& stat : tree.members) {
      Process* process = program_.Find(stat.id.pid);
      if (process == nullptr || !process->uses_gpu || !process::IsAlive(process->id)) continue;
      const bool away = process->state == device::ProcessState::kCheckpointed;
      found.push_back({process->id, process->state,
                       away ? std::vector<device::GpuUuid>() : process->gpus,
                       away ? 0 : process->device_bytes, no_checkpoint});
    }
    return found;
  }
  Result<std::vector<device::DeviceFileHolder>> FindOtherHolders(
      const process::ProcessTree&) override {
    return other_holders;
  }
  // The last thread of the process.
  Result<pid_t> RestoreThread(process::HostPid pid) override {
    STASIS_ASSIGN(const auto threads, process::ReadThreads(pid));
    return no_restore_thread || threads.empty() ? pid.value : threads.back();
  }

  using S = device::ProcessState;
  Status Lock(process::HostPid pid, const Deadline&) override {
    return Step("Lock", pid, S::kRunning, S::kLocked);
  }
  Status Checkpoint(process::HostPid pid, const Deadline&) override {
    return Step("Checkpoint", pid, S::kLocked, S::kCheckpointed);
  }
  Status Restore(process::HostPid pid, const device::GpuMap& map, const Deadline&) override {
    {
      std::lock_guard lock(program_.mutex);
      last_map_ = map;
    }
    return Step("Restore", pid, S::kCheckpointed, S::kLocked);
  }
  Status Unlock(process::HostPid pid, const Deadline&) override {
    return Step("Unlock", pid, S::kLocked, S::kRunning);
  }
  Status ContinueQueues(process::HostPid pid, const Deadline&) override {
    int number = 0;
    {
      std::lock_guard lock(program_.mutex);
      if (Process* process = program_.Find(pid)) number = process->number;
    }
    return log_.Run("device", "ContinueQueues " + std::to_string(number), [&]() -> Status {
      std::lock_guard lock(program_.mutex);
      if (Process* process = program_.Find(pid)) process->queues_stopped = false;
      return {};
    });
  }
  Result<std::vector<std::string>> DeviceFilesHeld(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = program_.Find(pid);
    return process == nullptr ? std::vector<std::string>() : process->files_held;
  }

  // The map of the last Restore.
  device::GpuMap last_map() const {
    std::lock_guard lock(program_.mutex);
    return last_map_;
  }

 private:
  Status Step(const std::string& what, process::HostPid pid, S from, S to) {
    Process* process = nullptr;
    {
      std::lock_guard lock(program_.mutex);
      process = program_.Find(pid);
    }
    if (process == nullptr) return Fail(Code::kNotFound, "no such process");
    return log_.Run("device", what + " " + std::to_string(process->number), [&]() -> Status {
      std::lock_guard lock(program_.mutex);
      if (!process::IsAlive(process->id)) return Fail(Code::kNotFound, "no such process");
      if (process->state != from) return Fail(Code::kFailedPrecondition, "wrong state");
      process->state = to;
      return {};
    });
  }

  Program& program_;
  CallLog& log_;
  device::GpuMap last_map_;  // guarded by the program's mutex
};

}  // namespace stasis::fakes
