// The device files of a restored container. CRIU restores the container's own /dev from the image.
// Its files have the device numbers of the dump, but the numbers of nvidia-uvm and nvidia-caps can
// change at a boot. Devices of GPUs that the container did not have are missing.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::device {

// Gives NVIDIA's device files below ROOT/dev the device numbers of this machine, and adds
// /dev/nvidiaN for each N of `minors`. `root` is the root folder of a process, "/proc/PID/root". No
// process of the container may run during the call. Does nothing if the process has this machine's
// /dev. Tests pass another path for that /dev as `dev`.
Status RenewDeviceNodes(const std::string& root, const std::vector<int>& minors,
                        const std::string& dev = "/dev");

}  // namespace stasis::device
