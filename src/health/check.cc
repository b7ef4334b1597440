#include "health/check.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/install_layout.h"
#include "criu/probe.h"

namespace stasis::health {
namespace {

constexpr std::chrono::seconds kPatience{20};

struct Machine {
  const Paths& paths;
  device::DeviceControl& device;
};

Finding CheckKernel(const Machine&) {
  utsname name;
  ::uname(&name);
  return {"kernel", Verdict::kGood, fmt::format("{} {}", name.sysname, name.release), "", ""};
}

Finding CheckPrograms(const Machine&) {
  for (const char* program : {"stasis-shim", "stasis-device-helper"}) {
    auto path = LibexecProgram(program);
    if (path) continue;
    return {"installation", Verdict::kBad, path.error().message, path.error().hint, "everything"};
  }
  return {"installation", Verdict::kGood, "complete", "", ""};
}

Finding CheckDriver(const Machine& machine) {
  auto driver = machine.device.Driver();
  if (!driver) {
    return {
        "GPU driver", Verdict::kBad, driver.error().ToString(),
        driver.error().hint.empty()
            ? "install NVIDIA's driver (570 or newer), or use the software GPU: `softgpu -- CMD`"
            : driver.error().hint,
        "everything that needs a GPU"};
  }
  std::string found = fmt::format("{} {}", driver->kind, driver->version);
  if (!driver->can_checkpoint) {
    return {"GPU driver", Verdict::kBad, found + ": " + driver->why_not,
            "install driver 570 or newer", "suspend, dump and restore of GPU programs"};
  }
  if (driver->kind == "softgpu") {
    return {"GPU driver", Verdict::kNote, found + ", the software GPU: its times mean nothing", "",
            ""};
  }
  return {"GPU driver", Verdict::kGood, found, "", ""};
}

Finding CheckGpus(const Machine& machine) {
  auto gpus = machine.device.Gpus();
  if (!gpus || gpus->empty()) {
    return {"GPUs", Verdict::kBad, gpus ? "none" : gpus.error().ToString(), "",
            "everything that needs a GPU"};
  }
  std::string found;
  for (const auto& gpu : *gpus) {
    found += fmt::format("{}{}: {}, {} of {} MiB free", found.empty() ? "" : "; ", gpu.index,
                         gpu.name, gpu.free_bytes >> 20, gpu.total_bytes >> 20);
  }
  return {"GPUs", Verdict::kGood, found, "", ""};
}

Finding CheckMemory(const Machine& machine) {
  auto text = ReadFile("/proc/meminfo");
  if (!text) return {"host memory", Verdict::kBad, text.error().ToString(), "", ""};
  std::istringstream words(*text);
  uint64_t available = 0;
  for (std::string key; words >> key;) {
    if (key == "MemAvailable:") words >> available;
  }
  available <<= 10;
  uint64_t gpu_bytes = 0;
  if (auto gpus = machine.device.Gpus()) {
    for (const auto& gpu : *gpus) gpu_bytes += gpu.total_bytes;
  }
  std::string found = fmt::format("{} MiB available", available >> 20);
  if (available >= gpu_bytes) return {"host memory", Verdict::kGood, found, "", ""};
  return {"host memory", Verdict::kNote,
          found + fmt::format("; the GPUs hold {} MiB, and what is suspended lies in host memory",
                              gpu_bytes >> 20),
          "add memory, or suspend programs that use less", ""};
}

Finding CheckDisk(const Machine& machine) {
  auto free = FreeBytes(machine.paths.images());
  if (!free) return {"image store", Verdict::kBad, free.error().ToString(), "", "dump"};
  return {"image store", Verdict::kGood,
          fmt::format("{}, {} MiB free", machine.paths.images(), *free >> 20), "", ""};
}

using Check = Finding (*)(const Machine&);
constexpr Check kChecks[] = {CheckKernel, CheckPrograms, CheckDriver,
                             CheckGpus,   CheckMemory,   CheckDisk};

// What CRIU needs, in the words of its room.
void AddCriu(std::vector<Finding>& findings) {
  for (auto& probed : criu::ProbeMachine(Deadline::In(kPatience))) {
    Finding finding{probed.name, Verdict::kGood, std::move(probed.meaning), "", ""};
    if (!probed.ok) {
      finding.verdict = Verdict::kBad;
      finding.remedy = std::move(probed.mend);
      finding.stops = "dump and restore";
    }
    findings.push_back(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> CheckMachine(const Paths& paths, device::DeviceControl& device) {
  Machine machine{paths, device};
  std::vector<Finding> findings;
  for (Check check : kChecks) findings.push_back(check(machine));
  AddCriu(findings);
  return findings;
}

bool AllGood(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& finding) { return finding.verdict == Verdict::kBad; });
}

}  // namespace stasis::health
