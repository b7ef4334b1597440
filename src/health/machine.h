// What the checks of a machine share. For this room's own use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "health/check.h"

namespace stasis::health {

struct Machine {
  const MachineOptions& options;
  // Asked once: a driver that hangs costs the time of one question.
  Result<device::DriverInfo> driver;
  Result<std::vector<device::Gpu>> gpus;

  uint64_t gpu_bytes(bool used) const;  // of all GPUs: their memory, or what of it is taken
  Deadline Patience() const { return Deadline::In(options.patience); }
  // Says what it was to find out, when a question was not answered in time.
  std::string Seconds() const;
};

using Findings = std::vector<Finding>;
using Check = void (*)(const Machine&, Findings&);

// One function for each kind or few, in the files that are named like it.
void CheckKernel(const Machine&, Findings&);
void CheckUserNamespace(const Machine&, Findings&);
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

// CAP_SYS_PTRACE and the like, by number, of this process.
bool HasCapability(int number);

}  // namespace stasis::health
