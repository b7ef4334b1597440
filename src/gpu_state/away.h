// What may be said about taking GPU memory away, and what came of it.
#pragma once

#include <cstdint>
#include <string>

namespace stasis::gpu_state {

struct AwayOptions {
  // A machine may grow its memory as it is used: what looks like too little RAM may be enough.
  bool ignore_memory = false;
  // All memory is left to the driver, also of programs with an agent.
  bool driver_alone = false;
  // Contexts keep their stack limits while the driver carries them, and it carries more: to
  // compare.
  bool keep_stack_limits = false;
  // Of a suspend or dump: processes that no agent sees share no GPU memory (unseen_sharing.h).
  bool assume_unshared = false;
  // Of a suspend: only the data leaves the GPU, and the driver is asked for nothing.
  bool keep_context = false;
  // GPU data goes to a file in this folder, not to host memory; empty: memory.
  std::string spill_dir;
};

// What a suspend did with the memory that the data plane carries, in bytes.
struct Saved {
  uint64_t copied = 0;     // to host memory
  uint64_t unchanged = 0;  // was there as of the last suspend
  uint64_t zero = 0;       // is stored nowhere
  uint64_t cold = 0;       // of the arena: host memory that was touched and registered for it first
  // Of the slowest GPU: until its first copy was on its way, the naming of blocks there, the copy,
  // and until the mover had let go of the memory afterwards; then, to close our descriptors.
  double until_first_s = 0;
  double naming_s = 0;
  double copy_s = 0;
  double release_s = 0;
  double close_s = 0;
};

}  // namespace stasis::gpu_state
