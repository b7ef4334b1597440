// Detects a process's use of a GPU from /proc: the driver's library in its address space, and
// device files among its descriptors and mappings.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"
#include "process/proc.h"

namespace stasis::device::cuda {

// A path prefix of device files, and the driver that they belong to.
struct DeviceFileRule {
  std::string_view kind;  // DriverInfo::kind
  std::string_view prefix;
};
inline constexpr DeviceFileRule kDeviceFileRules[] = {
    // nvidia0, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, nvidia-caps/…,
    // nvidia-caps-imex-channels/…
    {"nvidia", "/dev/nvidia"},
    // 0 (the directory itself, open in every process that called cuInit), 0/#4711 (memory)
    {"softgpu", "/softgpu/"},
};
// softgpu's connection to its broker is not listed: /proc shows it as an ordinary socket, and CRIU
// itself refuses to dump it.

struct Footprint {
  std::string library;  // path of the mapped libcuda.so.*; empty if none
  // "fd 7 -> /dev/nvidiactl", "mapping 7f…-7f… -> /dev/nvidia0"; each mapped path once
  std::vector<std::string> files;
  // Bytes of memory that the process has open or mapped, as far as its files tell, by the number in
  // the device file (NVIDIA: minor number; softgpu: index). NVIDIA's files do not tell the size; it
  // is 0 there.
  std::map<int, uint64_t> gpu_bytes;

  // Returns true if the process may be a user of the driver.
  bool candidate() const { return !library.empty() || !files.empty(); }
};
// Returns kNotFound if the process has ended, kPermissionDenied if it may not be read.
Result<Footprint> ReadFootprint(process::HostPid pid);

// Maps minor numbers to GPUs, from /proc/driver/nvidia. Empty without NVIDIA's driver.
std::map<int, GpuUuid> NvidiaMinors(const std::string& proc_root = "/proc/driver/nvidia/gpus");

}  // namespace stasis::device::cuda
