// CRIU's image folder of a held dump or restore (hold.h), which contains the GPU data or a
// reference to it.
#pragma once

#include <cstddef>
#include <string>

#include "base/paths.h"
#include "base/result.h"

namespace stasis::operations {

// CRIU writes this file last, before post-dump. It contains the id of the dump.
inline constexpr char kInventory[] = "inventory.img";
inline constexpr size_t kMaxInventoryBytes = 1u << 20;

// Returns the path of CRIU's image folder, which is open as `folder`. Returns kUnimplemented unless
// the path leads to the same folder in this process, because recovery opens the folder by its path.
Result<std::string> PathOfFolder(int folder);

// Checks that the GPU data in the image `data` and CRIU's files in `images` were written by the
// same dump. Otherwise returns kDataLoss.
Status CheckSameDump(const std::string& images, const std::string& data);

// Removes mounts in the folder of a killed CRIU. CRIU mounts the control groups into its image
// folder during a restore, and these mounts would prevent the removal of the folder.
void RemoveCgroupYard(const std::string& images);

// Puts back the agent's library if the GPU data in CRIU's image folder needs it and this machine
// does not have it. Does nothing if the folder has no GPU data. Reads only the manifest and the
// libraries of the GPU data, and the reference to them if they are elsewhere. With `trusted`, the
// library may come from an image that another installation wrote.
Status PutBackAgent(const std::string& images, const Paths& paths, bool trusted);

}  // namespace stasis::operations
