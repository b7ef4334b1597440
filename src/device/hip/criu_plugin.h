// CRIU's plugin for programs of HIP, which saves what the agent does not: queues, events and the
// memory that stays with the driver. Its limits are checked here before a program is touched.
//
// Functions without state. Safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::device::hip {

// Returns the folder of the plugin for this kind of driver (abi/driver_kinds.h). The folder
// contains no other plugin. A software GPU has a stand-in, beside its kernel. Returns
// kUnimplemented if this installation does not have it.
Result<std::string> FindCriuPlugin(std::string_view driver_kind);

// Checks that the kernel driver can save and restore GPU state, and that this user may ask it to.
// Always succeeds for a software GPU.
Status CheckKernelDriver(std::string_view driver_kind, const std::string& kfd = "/dev/kfd");

inline constexpr char kTopologyFolder[] = "/sys/class/kfd/kfd/topology/nodes";
// Returns the properties of the GPUs and their firmware that decide whether a restore is possible:
// one line for each GPU, "name=value …". Omits GPUs that a control group hides. Empty for a
// software GPU.
Result<std::string> ReadTopology(std::string_view driver_kind,
                                 const std::string& folder = kTopologyFolder);

// Checks that each GPU in `recorded` can be replaced by another one in `here`, by the rules of the
// plugin: the same model, and firmware that is not older. Otherwise returns kUnimplemented, with
// the property that differs. Compares nothing if `recorded` is empty. It may be from an image, so
// it may contain anything. Does not compare the amount of memory and the links between GPUs.
Status CompareTopology(std::string_view recorded, std::string_view here);

}  // namespace stasis::device::hip
