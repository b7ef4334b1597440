// Checks whether a mount of a network file system shows new files of other hosts without delay.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::objects {

struct Mount {
  std::string type;     // of the file system: "ext4", "nfs4"
  std::string options;  // of the file system, separated by commas
};

// Returns the last mount of the file system with this device number (stat::st_dev), from the text
// of /proc/self/mountinfo.
std::optional<Mount> FindMount(std::string_view mountinfo, dev_t device);

// Returns kFailedPrecondition for an NFS mount that keeps the attributes of files and folders for
// some seconds: during this time the mount does not show what other hosts have created. `path` is
// in the error.
Status CheckMount(const Mount& mount, const std::string& path);

}  // namespace stasis::objects
