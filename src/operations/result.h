// The results of operations.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_state/away.h"
#include "plan/account.h"

namespace stasis::operations {

using gpu_state::Saved;

// How a dump stored one kind of memory, in bytes.
struct StoredPart {
  uint64_t written = 0;   // after compression
  uint64_t raw = 0;       // before compression
  uint64_t shared = 0;    // already in earlier images
  uint64_t repeated = 0;  // repetitions within this image
  uint64_t zero = 0;      // zero blocks or pages, which are not stored
};

// The data that a dump stored.
struct Stored {
  uint64_t added = 0;  // bytes of the image that no earlier image had
  StoredPart gpu;      // blocks that movers carried
  StoredPart cpu;      // pages of CPU memory
};

struct OperationResult {
  plan::Account account;
  std::string operation;       // id of the operation
  std::string target;          // as the user named it
  std::string job;             // empty for a bare process
  pid_t pid = 0;               // the tree's root; 0 if it has ended
  std::string image;           // path; may be empty
  uint64_t image_bytes = 0;    // size of everything that the image refers to
  double pause_s = 0;          // how long a program that keeps running was stopped
  Stored stored;               // set by a dump
  uint64_t device_bytes = 0;   // all GPU memory taken away or returned
  uint64_t shared_bytes = 0;   // the part of it that movers carried
  bool keep_context = false;   // the context stays on the GPU
  uint64_t staying_bytes = 0;  // the program's own memory that stays with the context
  Saved saved;                 // set by a suspend or dump; other operations set only `cold`
  std::vector<std::string> left_to_driver;  // why processes took the opaque path; sentences
  std::string driver_kind;                  // abi/driver_kinds.h
  std::vector<std::string> notes;           // sentences
  std::vector<std::string> planned_phases;  // with dry_run
};

}  // namespace stasis::operations
