// Options and result of saving and releasing GPU memory.
#pragma once

#include <cstdint>
#include <string>

namespace stasis::gpu_state {

struct AwayOptions {
  // Skips the check for host memory, for machines that get more memory on demand.
  bool ignore_memory = false;
  // Leaves all memory to the driver, even in programs with an agent.
  bool driver_alone = false;
  // Does not lower the stack limits of contexts, so the driver saves more data. For benchmarks
  // only.
  bool keep_stack_limits = false;
  // suspend, dump: assume that processes without an agent share no GPU memory (unseen_sharing.h).
  bool assume_unshared = false;
  // suspend: only the data leaves the GPU, without a call to the driver.
  bool keep_context = false;
  // With keep_context: the driver of a process cannot checkpoint it, so there is no alternative
  // (DeviceProcess::no_checkpoint). Set by the operation.
  bool no_checkpoint = false;
  // Folder for GPU data. If empty, the data stays in host memory.
  std::string spill_dir;
  // Folder for the part of the GPU data that does not fit into host memory. If empty, an operation
  // that does not fit is refused.
  std::string overflow_dir;
  // Limit for the host memory that GPU data takes in this operation; 0: only the memory that is
  // free.
  uint64_t arena_limit_bytes = 0;
};

// Each GPU's mover copies through this much memory if an arena is on disk, and a load needs some
// buffers too, so a smaller limit cannot be kept.
inline constexpr uint64_t kLeastArenaLimitBytes = 64u << 20;

// The data that movers saved, in bytes.
struct Saved {
  uint64_t copied = 0;     // to host memory
  uint64_t unchanged = 0;  // already there from the last suspend
  uint64_t zero = 0;       // in zero blocks, which are not stored
  uint64_t cold = 0;       // bytes of arenas that had to be touched and registered first
  // Times of the slowest GPU: until its first copy was submitted, for hashing, for the copy, and
  // for the release of the memory by the mover. close_s is the time to close the descriptors of
  // this process.
  double until_first_s = 0;
  double hashing_s = 0;
  double copy_s = 0;
  double release_s = 0;
  double close_s = 0;
};

}  // namespace stasis::gpu_state
