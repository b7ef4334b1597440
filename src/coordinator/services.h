// What an operation works with. Made once by whoever runs operations (the CLI, later the daemon).
#pragma once

#include <memory>
#include <string>

#include "base/paths.h"
#include "config/settings.h"
#include "coordinator/plan.h"
#include "dataplane/resident.h"
#include "device/device_control.h"

namespace stasis::coordinator {

struct Services {
  Paths paths;
  std::shared_ptr<device::DeviceControl> device;
  std::shared_ptr<dataplane::Resident> resident;  // movers and arenas
  std::string stasis_version;
  config::Settings settings;
  // For bringing a process back to where it was: nobody waits for it but the undo itself. The
  // driver moves 6 GB/s at best. Never shortened with the phases' own: a phase is mostly too slow
  // because the data is large, and it is as large on its way back.
  std::chrono::milliseconds undo_timeout() const {
    return config::Milliseconds(settings.undo_timeout_s);
  }
};

// What the user may say about any operation.
struct OperationOptions {
  std::chrono::milliseconds timeout{0};  // for every phase; 0: each phase's own
  bool dry_run = false;                  // survey and plan, but touch nothing
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
  Progress progress;
  std::function<bool()> cancelled;
};

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

// What an operation tells its user at the end.
struct OperationResult {
  Account account;
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
  std::string driver_kind;                  // "softgpu": its times mean nothing
  std::vector<std::string> notes;           // sentences
  std::vector<std::string> planned_phases;  // with dry_run
};

}  // namespace stasis::coordinator
