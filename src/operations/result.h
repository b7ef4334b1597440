// What an operation tells its user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_state/away.h"
#include "plan/account.h"

namespace stasis::operations {

using gpu_state::Saved;

// What became of a kind of memory in a dump, in bytes.
struct StoredPart {
  uint64_t written = 0;   // as it is stored
  uint64_t raw = 0;       // the same before compression
  uint64_t shared = 0;    // that earlier images had
  uint64_t repeated = 0;  // that is in this image more than once
  uint64_t zero = 0;      // that is all zero
};

// What a dump stored.
struct Stored {
  uint64_t added = 0;  // bytes of the image that no earlier image had
  StoredPart gpu;      // by the data plane
  StoredPart cpu;      // pages of CPU memory
};

// What an operation tells its user at the end.
struct OperationResult {
  plan::Account account;
  std::string operation;                    // its id
  std::string target;                       // as the user named it
  std::string job;                          // empty for a bare process
  pid_t pid = 0;                            // of the tree's root; 0 when it has ended
  std::string image;                        // path, where there is one
  uint64_t image_bytes = 0;                 // what the image refers to
  double pause_s = 0;                       // of a program that runs on: how long it stood still
  Stored stored;                            // by a dump
  uint64_t device_bytes = 0;                // GPU memory given up or taken back, all of it
  uint64_t shared_bytes = 0;                // of it, what the data plane carried
  bool keep_context = false;                // then the rest of it stays on the GPU
  uint64_t staying_bytes = 0;               // of that, memory of the program's own
  Saved saved;                              // of that, by a suspend or dump
  std::vector<std::string> left_to_driver;  // why some took the opaque path; sentences
  std::string driver_kind;                  // abi::DriverKind::name
  std::vector<std::string> notes;           // sentences
  std::vector<std::string> planned_phases;  // with dry_run
};

}  // namespace stasis::operations
