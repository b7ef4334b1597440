// The ids that CRIU gives to the restored tasks. The manifest lists processes only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>

#include "base/result.h"

namespace stasis::criu {

// Reads the ids of processes, threads, process groups and sessions from CRIU's pstree.img. With
// `shell_job`, the group and session of the root are those of the restoring process instead.
// Returns kInternal if the format is not that of CRIU 4.
Result<std::set<pid_t>> ReadTaskIds(int pstree_img, uint64_t size_bytes, bool shell_job);

}  // namespace stasis::criu
