// The kinds of GPU drivers, and everything in which they differ for Stasis: one row for each. Other
// code asks this table and names no driver (tests/source/layers_test.py). libc only, because the
// agent uses it inside the user's program.
#pragma once

#include <string.h>

namespace stasis::abi {

struct DriverKind {
  const char* name;  // in images, records and messages
  // A function that only this driver's library exports; it returns the driver's version as text.
  // Null: none, the version is that of the kernel module.
  const char* version_symbol;
  const char* device_files;  // path prefix of its device files
  // Only a number behind the prefix makes a path a device file; otherwise every path does.
  bool files_are_numbered;
  // The size of a device file is that of the GPU memory behind it, memory that was imported from
  // other processes included. Otherwise NVML accounts for memory.
  bool files_have_sizes;
  const char* environment;  // prefix of the variables that select its GPUs; null if none
  // The program in libexec/ that serves all users of the driver; null if none.
  const char* server;
  // The file below the installation's root with the kernel that hashes blocks; null: PTX.
  const char* kernel_file;
  const char* remark;  // what a user should know about it; null if nothing
  // Real GPUs: durations are meaningful, and GPU persistence is worth a check.
  bool is_hardware;
};

inline constexpr DriverKind kDriverKinds[] = {
    {
        .name = "nvidia",
        .version_symbol = nullptr,
        // nvidia0, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, nvidia-caps/…,
        // nvidia-caps-imex-channels/…
        .device_files = "/dev/nvidia",
        .files_are_numbered = false,
        .files_have_sizes = false,
        .environment = nullptr,
        .server = nullptr,
        .kernel_file = nullptr,
        .remark = nullptr,
        .is_hardware = true,
    },
    {
        .name = "softgpu",
        .version_symbol = "softgpuVersion",
        // 0 (the directory itself, open in every process that called cuInit), 0/#4711 (memory). The
        // connection to the server is not listed: /proc shows it as an ordinary socket, and CRIU
        // itself refuses to dump it.
        .device_files = "/softgpu/",
        .files_are_numbered = true,
        .files_have_sizes = true,
        .environment = "SOFTGPU_",
        .server = "softgpu-broker",
        .kernel_file = "lib/softgpu/block_names.softgpu.so",
        .remark = "the software GPU: its times mean nothing",
        .is_hardware = false,
    },
};

// Returns the row of that name; that of real hardware for an unknown or empty name.
inline const DriverKind& FindDriverKind(const char* name) {
  for (const DriverKind& kind : kDriverKinds) {
    if (strcmp(kind.name, name) == 0) return kind;
  }
  return kDriverKinds[0];
}

// Returns true if the path begins like a device file of any driver.
inline bool HasDeviceFilePrefix(const char* path) {
  for (const DriverKind& kind : kDriverKinds) {
    if (strncmp(path, kind.device_files, strlen(kind.device_files)) == 0) return true;
  }
  return false;
}

// Returns true if the environment entry "NAME=VALUE" selects the GPUs of a driver.
inline bool SelectsGpus(const char* entry) {
  for (const DriverKind& kind : kDriverKinds) {
    if (kind.environment == nullptr) continue;
    if (strncmp(entry, kind.environment, strlen(kind.environment)) == 0) return true;
  }
  return false;
}

}  // namespace stasis::abi
