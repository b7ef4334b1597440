// The kinds of GPU drivers, one row each, with the names, files and properties in which they
// differ. Needs nothing but libc, because the agent includes it.
#pragma once

#include <string_view>

namespace stasis::abi {

struct DriverKind {
  std::string_view name;  // DriverInfo::kind, and the driver's kind in manifests and records
  // A function of the driver's library that no other driver has; it returns the version as text. If
  // nullptr, this kind is assumed when no other kind matches.
  const char* version_symbol;
  std::string_view device_files;  // prefix of the paths of its device files
  std::string_view variables;     // prefix of its environment variables; empty: none
  std::string_view server;        // its server in libexec, shared by programs; empty: none
  // Path of the hashing kernel, relative to the installation's root. If empty, the PTX that is
  // built into the mover is loaded.
  std::string_view kernel;
  bool has_nvml;
  bool is_hardware;  // false: times are meaningless, and device files show the memory in use
  bool is_hip;       // the driver is the HIP runtime, which cannot checkpoint a process
  // Program in libexec that continues the queues of the process with a given pid, for a HIP driver
  // without /dev/kfd (device/hip/queues.h). Empty: none.
  std::string_view unpause;
};

inline constexpr DriverKind kDriverKinds[] = {
    // Names of device files: 0 (the directory itself, which every process has open that called
    // cuInit) and 0/#4711 (a file of device memory).
    {"softgpu", "softgpuVersion", "/softgpu/", "SOFTGPU_", "softgpu-broker",
     "lib/softgpu/block_hashes.softgpu.so", false, false, false, ""},
    // The same software GPUs, used by a HIP program. Names of device files: 0, 0/#4711.
    {"softgpu-hip", "softgpuVersion", "/softgpu-hip/", "", "",
     "lib/softgpu/block_hashes.softgpu.so", false, false, true, "softgpu-hip-unpause"},
    // Names of device files: nvidia0, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset,
    // nvidia-caps/…, nvidia-caps-imex-channels/…
    {"nvidia", nullptr, "/dev/nvidia", "", "", "", true, true, false, ""},
    // Device files: kfd; and render nodes, which other programs use too (device/hip/hip_driver.h).
    {"amd", nullptr, "/dev/kfd", "", "", "", false, true, true, ""},
};

// Returns the row of this name, or nullptr.
constexpr const DriverKind* FindDriverKind(std::string_view name) {
  for (const DriverKind& kind : kDriverKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

// Returns false if times measured with this kind of driver are meaningless.
constexpr bool IsHardware(std::string_view name) {
  const DriverKind* kind = FindDriverKind(name);
  return kind == nullptr || kind->is_hardware;
}

// Returns true if this kind of driver is the HIP runtime.
constexpr bool IsHip(std::string_view name) {
  const DriverKind* kind = FindDriverKind(name);
  return kind != nullptr && kind->is_hip;
}

// Returns the kind whose device files include `path`, or nullptr.
constexpr const DriverKind* KindOfDeviceFile(std::string_view path) {
  for (const DriverKind& kind : kDriverKinds) {
    if (path.starts_with(kind.device_files)) return &kind;
  }
  return nullptr;
}

// Returns whether an environment variable ("NAME=value") belongs to a driver.
constexpr bool IsDriverVariable(std::string_view entry) {
  for (const DriverKind& kind : kDriverKinds) {
    if (!kind.variables.empty() && entry.starts_with(kind.variables)) return true;
  }
  return false;
}

}  // namespace stasis::abi
