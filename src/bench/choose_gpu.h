// The GPU that a bench measures.
#pragma once

#include <string>

#include "cli/verb.h"
#include "device/device_control.h"

namespace stasis::bench {

// `meant` is an index, UUID or name. Returns kUnimplemented if the driver cannot suspend programs.
Result<device::Gpu> ChooseGpu(const cli::Globals& globals, const std::string& meant);

}  // namespace stasis::bench
