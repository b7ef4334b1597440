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

// Matches the driver's library, even if deleted since: libcuda.so.1, libcuda.so.580.159.04,
// libamdhip64.so.6. Excludes the stub for linking on machines without a driver: no process can use
// a GPU through it.
bool IsDriverLibrary(std::string_view path);

struct Footprint {
  std::string library;  // path of the mapped libcuda.so.* or libamdhip64.so.*; empty if none
  bool hip = false;     // the process uses HIP: it has device files of such a driver
  // "fd 7 -> /dev/nvidiactl", "mapping 7f…-7f… -> /dev/nvidia0"; each mapped path once
  std::vector<std::string> files;
  // Bytes of memory that the process has open or mapped, by the number in the device file (NVIDIA:
  // minor number; a software GPU: index). NVIDIA's files do not show the size, so it is 0.
  std::map<int, uint64_t> gpu_bytes;

  // Returns true if the process may be a user of the driver.
  bool candidate() const { return !library.empty() || !files.empty(); }
};
// Returns kNotFound if the process has ended, kPermissionDenied if it may not be read.
Result<Footprint> ReadFootprint(process::HostPid pid);

// Maps minor numbers to GPUs, from /proc/driver/nvidia. Empty without NVIDIA's driver.
std::map<int, GpuUuid> NvidiaMinors(const std::string& proc_root = "/proc/driver/nvidia/gpus");

}  // namespace stasis::device::cuda
