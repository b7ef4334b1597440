// Checks of the driver, the GPUs, and a mover on each GPU.
#include <fmt/format.h>
#include <sys/utsname.h>

#include "abi/driver_kinds.h"
#include "base/install_layout.h"
#include "dataplane/mover_client.h"
#include "health/driver_table.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

// Sizes of a mover's context with a reduced stack limit and with the default one (H200, driver
// 580).
constexpr uint64_t kSmallContext = 270u << 20;
constexpr uint64_t kWholeContext = 540u << 20;

// Returns the result of `uname -m`.
std::string Architecture() {
  utsname name{};
  return ::uname(&name) == 0 ? name.machine : "";
}

void CheckPersistence(const Machine& machine, Findings& findings) {
  std::string off, unknown;
  for (const device::Gpu& gpu : *machine.gpus) {
    std::string& list = gpu.persistence ? off : unknown;
    if (gpu.persistence.value_or(false)) continue;
    list += fmt::format("{}{}", list.empty() ? "GPU " : ", ", gpu.index);
  }
  if (!off.empty()) {
    findings.push_back(Finding::Of("persistence", Level::kWarning, "off: " + off));
  } else if (!unknown.empty()) {
    findings.push_back(
        Finding::Of("persistence", Level::kNote,
                    "NVIDIA's management library (NVML) does not report it for " + unknown));
  } else {
    findings.push_back(Finding::Of("persistence", Level::kOk, "on"));
  }
}

}  // namespace

void CheckDriver(const Machine& machine, Findings& findings) {
  const auto& driver = machine.driver;
  if (!driver) {
    findings.push_back(
        Finding::Of("driver", Level::kCannot, driver.error().ToString(), driver.error().hint));
    return;
  }
  std::string found = driver->kind;
  if (!driver->version.empty()) found += " " + driver->version;
  found += fmt::format(" ({})", ApiName(driver->api_version));
  if (abi::IsHip(driver->kind)) {
    findings.push_back(Finding::Of("driver", Level::kWarning, found + ": " + driver->why_not));
    return;
  }
  if (!driver->can_checkpoint) {
    const std::string able = AbleTo(driver->api_version);
    found += ": " + (Lacks(driver->api_version).empty() || driver->api_version == 0
                         ? driver->why_not
                         : (able.empty() ? "this driver cannot save GPU state"
                                         : "this driver supports only " + able));
    findings.push_back(Finding::Of("driver", Level::kCannot, found));
    return;
  }
  const bool hardware = abi::IsHardware(driver->kind);
  if (!hardware) found += ", a software GPU: times measured with it mean nothing";
  findings.push_back(Finding::Of("driver", hardware ? Level::kOk : Level::kNote, found));
  std::string lacks = Lacks(driver->api_version);
  if (hardware) {
    const std::string here = LacksOn(Architecture(), driver->version);
    lacks += (lacks.empty() || here.empty() ? "" : "; ") + here;
  }
  findings.push_back(Finding::Of("driver-can", lacks.empty() ? Level::kOk : Level::kWarning,
                                 lacks.empty() ? AbleTo(driver->api_version) : lacks));
}

void CheckGpus(const Machine& machine, Findings& findings) {
  // If the driver does not answer, CheckDriver() has reported that.
  if (!machine.driver) return;
  if (!machine.gpus || machine.gpus->empty()) {
    findings.push_back(Finding::Of("gpus", Level::kCannot,
                                   machine.gpus ? "none" : machine.gpus.error().ToString()));
    return;
  }
  std::string all;
  for (const device::Gpu& gpu : *machine.gpus) {
    all += fmt::format("{}{}: {}, {} of {} MiB free", all.empty() ? "" : "; ", gpu.index, gpu.name,
                       gpu.free_bytes >> 20, gpu.total_bytes >> 20);
  }
  findings.push_back(Finding::Of("gpus", Level::kOk, all));
  if (abi::IsHardware(machine.driver->kind)) CheckPersistence(machine, findings);
  bool room = true;
  for (const device::Gpu& gpu : *machine.gpus) {
    if (gpu.free_bytes >= kWholeContext) continue;
    room = false;
    findings.push_back(Finding::Of(
        "gpu-memory-free", gpu.free_bytes < kSmallContext ? Level::kWarning : Level::kNote,
        fmt::format("GPU {}: {} MiB free", gpu.index, gpu.free_bytes >> 20)));
  }
  if (room) {
    findings.push_back(Finding::Of("gpu-memory-free", Level::kOk,
                                   fmt::format("at least {} MiB on each", kWholeContext >> 20)));
  }
}

void CheckMover(const Machine& machine, Findings& findings) {
  if (!machine.options.full || !machine.gpus) return;
  for (const device::Gpu& gpu : *machine.gpus) {
    auto start = [&]() -> Result<std::string> {
      dataplane::MoverOptions options;
      STASIS_ASSIGN(options.program, LibexecProgram("stasis-mover"));
      options.gpu = gpu.uuid;
      options.library = machine.options.cuda_library;
      dataplane::Mover mover(options);
      Stopwatch watch;
      STASIS_ASSIGN(auto info, mover.Start(machine.Patience()));
      const double seconds = watch.Seconds();
      STASIS_TRY(mover.Stop());
      return fmt::format("GPU {}: started in {:.2f} s, its context takes {} MiB", gpu.index,
                         seconds, info.context_bytes >> 20);
    };
    auto started = start();
    findings.push_back(
        started ? Finding::Of("mover", Level::kOk, *started)
                : Finding::Of("mover", Level::kCannot,
                              fmt::format("GPU {}: {}", gpu.index, started.error().ToString()),
                              started.error().hint));
  }
}

}  // namespace stasis::health
