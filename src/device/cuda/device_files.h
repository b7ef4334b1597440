// What /proc tells about a process's use of a GPU: the driver's library in its address space, and
// the driver's files among its descriptors and mappings.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"
#include "process/proc.h"

namespace stasis::device::cuda {

// Paths that belong to a GPU, and to whose.
struct DeviceFileRule {
  std::string_view kind;  // DriverInfo::kind
  std::string_view prefix;
};
inline constexpr DeviceFileRule kDeviceFileRules[] = {
    // nvidia0, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, nvidia-caps/…,
    // nvidia-caps-imex-channels/…
    {"nvidia", "/dev/nvidia"},
    // 0 (the folder itself, held by whoever has called cuInit), 0/#4711 (memory)
    {"softgpu", "/softgpu/"},
};
// softgpu's connection to its broker is not among them: /proc shows it as one socket of many. CRIU
// refuses to dump it by itself.

struct Footprint {
  std::string library;  // path of the libcuda.so.* that is mapped; empty: none
  // "fd 7 -> /dev/nvidiactl", "mapping 7f…-7f… -> /dev/nvidia0"; each path of a mapping once
  std::vector<std::string> files;
  // By the numbers in the device files (minor numbers; softgpu: indices): how much memory of that
  // GPU it has open or mapped, as far as its files tell. NVIDIA's do not: 0.
  std::map<int, uint64_t> gpu_bytes;

  // The driver is worth being asked about it.
  bool candidate() const { return !library.empty() || !files.empty(); }
};
// kNotFound when the process has ended, kPermissionDenied when it may not be read.
Result<Footprint> ReadFootprint(process::HostPid pid);

// Which GPU has which minor number, from /proc/driver/nvidia; empty without NVIDIA's driver.
std::map<int, GpuUuid> NvidiaMinors(const std::string& proc_root = "/proc/driver/nvidia/gpus");

}  // namespace stasis::device::cuda
