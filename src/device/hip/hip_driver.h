// The parts of device control that differ for AMD GPUs. Their driver is the HIP runtime
// (libamdhip64) on the amdgpu kernel driver. It cannot checkpoint a process, so only an agent in
// the program can move its GPU memory, and the rest of its GPU state stays on the GPU.
//
// Functions without state. Safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::device::hip {

// Says that the driver cannot checkpoint, and what Stasis does instead. One sentence without a full
// stop.
extern const char kNoCheckpoint[];

// Returns true if this kind of driver (DriverInfo::kind) is the HIP runtime.
bool IsHipDriver(std::string_view driver_kind);

// The error of a step of the driver (lock, checkpoint, restore, unlock) for a process that uses
// HIP.
Error NoSuchStep(std::string_view step, int pid);

// Matches libamdhip64.so.6 and libamdhip64.so.6.4.60400, even if deleted since.
bool IsRuntimeLibrary(std::string_view path);

// Matches the render nodes of /dev/dri. Other programs have them open too, so they count as files
// of HIP only in a process that also has a device file of HIP's driver (abi/driver_kinds.h).
bool IsRenderNode(std::string_view path);

// Returns the version of the kernel driver, or an empty string for the driver that is part of the
// kernel, which has no version.
std::string KernelDriverVersion();

}  // namespace stasis::device::hip
