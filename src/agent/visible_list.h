// The list of GPUs that the driver gets in place of the program's CUDA_VISIBLE_DEVICES, so that it
// can move the program to GPUs that the program does not see.
#pragma once

#include <stddef.h>

#include <string_view>

#include "abi/cuda/visible_devices.h"

namespace stasis::agent {

inline constexpr size_t kUuidBytes = 40;  // "GPU-" and 36 characters

// The UUIDs of the machine's GPUs.
struct GpuNames {
  int count = 0;
  std::string_view uuids[abi::kMostVisible];
  char text[abi::kMostVisible][kUuidBytes];
};

// Reads the UUIDs from the files FOLDER/*/information of NVIDIA's kernel module
// ("/proc/driver/nvidia/gpus").
void ReadGpuNames(const char* folder, GpuNames* names);

inline constexpr size_t kListBytes = abi::kMostVisible * (kUuidBytes + 1);

// Writes a list with the GPUs of `list` first, in the same order, and then all other GPUs, and
// returns how many GPUs of the new list the program may see. Indices that this machine does not
// have may follow: they end the list for the driver. Returns 0 if the driver must read `list`
// itself: it names no GPU, or one twice, or UUIDs that are not in `names`.
int ListAllGpus(std::string_view list, const GpuNames& names, char (&all)[kListBytes]);

}  // namespace stasis::agent
