// Facts about the program in an image, which a restore reads from the manifest.
#pragma once

#include <cstdint>

#include "criu/options.h"
#include "gpu_state/gpu_steps.h"
#include "store/manifest.h"

namespace stasis::operations {

// Adds the options that the dump recorded, unless the user overrides them.
criu::Options WithRecorded(criu::Options options, const store::Manifest& manifest);

// Returns the host memory that the program itself needs. data-read checks the room for GPU data
// when it allocates the arenas, because reusable arenas may exist already.
uint64_t CpuBytes(const store::Manifest& manifest);

// Returns how many bytes of GPU memory are carried by the driver and not by Stasis.
uint64_t DriverBytes(const store::Manifest& manifest);

// Returns the GPU processes of the image. Their pids are those inside the image, and their start
// times are 0.
gpu_state::Processes RecordedProcesses(const store::Manifest& manifest);

}  // namespace stasis::operations
