// Host memory that receives the CPU memory of a program while the program is stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/page_streams.h"
#include "process/tree.h"

namespace stasis::checkpoint {

struct CpuRoomNeed {
  uint64_t expected_bytes = 0;  // private memory, all of which CRIU saves
  uint64_t most_bytes = 0;      // also shared memory, and a margin for what the program allocates
};

// Returns how much CPU memory CRIU will save. `driver_bytes` is the size of the GPU memory that the
// driver will have saved in the program's own memory by then. Ignores processes that have ended.
CpuRoomNeed NeededCpuRoom(const process::ProcessTree& tree, uint64_t driver_bytes);

// Returns how many bytes this process may allocate: the limits of the machine and of its control
// groups.
uint64_t AvailableHostMemory();

// Either `streams`, or a sentence that says why there are none. Then CRIU writes to its folder.
struct CpuRoom {
  std::unique_ptr<PageStreams> streams;
  std::string note;
};
// Reserves the memory, if `available_bytes` suffice for twice as much and for `driver_bytes`, and
// puts the links of `files` files into CRIU's folder.
CpuRoom MakeCpuRoom(const CpuRoomNeed& need, uint64_t driver_bytes, uint64_t available_bytes,
                    int criu_folder_fd, size_t files);

}  // namespace stasis::checkpoint
