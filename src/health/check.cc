#include "health/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/file.h"
#include "base/install_layout.h"
#include "criu/probe.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

void CheckPrograms(const Machine&, Findings& findings) {
  for (const char* program :
       {"stasis-shim", "stasis-device-helper", "stasis-mover", "stasis-agent-probe"}) {
    auto path = LibexecProgram(program);
    if (path) continue;
    findings.push_back(Finding::Of("installation", Level::kCannot, path.error().message));
    return;
  }
  findings.push_back(Finding::Of("installation", Level::kOk, "complete"));
}

// Reports CRIU's requirements. If this user lacks privileges, only "privileges" is kCannot; the
// probes that fail for the same reason become notes.
void CheckCriu(const Machine& machine, Findings& findings) {
  const bool may = criu::CheckPrivileges().has_value();
  for (auto& probed : criu::ProbeMachine(machine.options.criu, machine.Patience())) {
    Level level = probed.ok ? Level::kOk : Level::kCannot;
    const std::string& name = probed.name;
    if (!probed.ok && !may && name != "privileges" && name != "criu") {
      level = Level::kNote;
      probed.meaning += "; `sudo stasis check` checks this with all privileges";
    }
    findings.push_back(Finding::Of(name, level, std::move(probed.meaning), std::move(probed.fix)));
  }
}

constexpr Check kChecks[] = {
    CheckPrograms,       CheckKernel,          CheckUserNamespace, CheckCriu,
    CheckResourceLimits, CheckVectorRegisters, CheckPtraceScope,   CheckDriver,
    CheckGpus,           CheckMemory,          CheckHugePages,     CheckMemlock,
    CheckRunFolder,      CheckImageStore,      CheckDiskSpeed,     CheckAgent,
    CheckMover,          CheckContainers,
};

}  // namespace

uint64_t Machine::gpu_bytes(bool used) const {
  uint64_t sum = 0;
  if (!gpus) return sum;
  for (const auto& gpu : *gpus) {
    sum += used ? gpu.total_bytes - std::min(gpu.total_bytes, gpu.free_bytes) : gpu.total_bytes;
  }
  return sum;
}

bool HasCapability(int number) {
  std::istringstream lines(ReadFile("/proc/self/status", 64u << 10).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("CapEff:")) continue;
    return (std::strtoull(line.c_str() + 7, nullptr, 16) >> number & 1) != 0;
  }
  return false;
}

std::vector<Finding> CheckMachine(const MachineOptions& options, device::DeviceControl& device) {
  auto driver = device.Driver();
  auto gpus = driver ? device.Gpus() : Fail(driver.error());
  const Machine machine{options, std::move(driver), std::move(gpus)};
  Findings findings;
  for (Check check : kChecks) check(machine, findings);
  return findings;
}

}  // namespace stasis::health
