// The data that the checks of a machine share. Internal to this folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "health/check.h"

namespace stasis::health {

struct Machine {
  const MachineOptions& options;
  // Results of one query each, so that a hung driver costs only one timeout.
  Result<device::DriverInfo> driver;
  Result<std::vector<device::Gpu>> gpus;

  uint64_t gpu_bytes(bool used) const;  // total memory of all GPUs, or the used part of it
  Deadline Patience() const { return Deadline::In(options.patience); }
};

using Findings = std::vector<Finding>;
using Check = void (*)(const Machine&, Findings&);

// Each check reports one kind of finding, or a few related kinds.
void CheckKernel(const Machine&, Findings&);
void CheckVectorRegisters(const Machine&, Findings&);
void CheckUserNamespace(const Machine&, Findings&);
void CheckResourceLimits(const Machine& machine, Findings& findings);
void CheckPtraceScope(const Machine&, Findings&);
void CheckMemory(const Machine&, Findings&);
void CheckHugePages(const Machine&, Findings&);
void CheckMemlock(const Machine&, Findings&);

void CheckDriver(const Machine&, Findings&);
void CheckGpus(const Machine&, Findings&);
void CheckMover(const Machine&, Findings&);

void CheckRunFolder(const Machine&, Findings&);
void CheckImageStore(const Machine&, Findings&);
void CheckDiskSpeed(const Machine&, Findings&);

void CheckAgent(const Machine&, Findings&);

void CheckContainers(const Machine&, Findings&);

// Returns true if this process has the capability with that number, such as CAP_SYS_PTRACE.
bool HasCapability(int number);

}  // namespace stasis::health
