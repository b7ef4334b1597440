// Restore: starts a program from an image.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "criu/options.h"
#include "device/gpu_map.h"
#include "gpu_state/services.h"
#include "operations/data_ahead.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"
#include "plan/plan.h"
#include "store/manifest.h"
#include "store/range_source.h"

namespace stasis::operations {

struct RestoreOptions {
  std::string image;  // path
  // If set, the image's GPU memory is not in its folder, and is read from here.
  const store::RangeSource* ranges = nullptr;
  // If set, arenas that already have the GPU memory of an earlier image. `ranges` must know that
  // image (repository::RangeStream::SetEarlier), and then reads only what differs from it.
  DataAhead* ahead = nullptr;
  std::string shown_as;    // the image's name for the user; if empty, its path
  std::string job;         // the job's id; if empty, the one in the image, or a new one
  std::string log;         // file for the program's output; if empty, the job's log
  std::string gpu_map;     // "OLD=NEW,...", or "auto": replace GPUs that are missing
  std::string granted;     // the GPUs that the program may use; "auto" chooses among these
  bool new_pidns = false;  // restore into a new pid namespace whose init process is the shim
  // With new_pidns: lets the program write to files that other programs have open for writing.
  bool share_files = false;
  // Skips the checks of the image's origin and owners (checks/image_trust.h).
  bool trust_image = false;
  // True if another program drives CRIU (hold.h). The image then contains GPU data only, and the
  // program does not become a job.
  bool held = false;
  // The numbers N of the devices /dev/nvidiaN that a held restore must not use.
  std::vector<int> refused_minors;
  // Text to write to the log of a new job before the program's output, unless `log` is set.
  std::string earlier_log;
  // If set, called before the restore is committed (stasis migrate). An error undoes the restore.
  // At the time of the call a program with a GPU is complete, and its CPU threads are running; a
  // program without a GPU has not run yet.
  std::function<Status(plan::PhaseScope&)> before_adopt;
  criu::Options criu;
};

// Returns kResourceExhausted unless this host has room for the program's CPU memory in addition to
// the allocated arenas. Frees unused arenas if that is necessary.
Status CheckCpuMemory(gpu_state::Services& services, const store::Manifest& manifest);

// Returns the GPUs that replace those of the image, by gpu_map; empty if the image's own are used.
Result<device::GpuMap> ChooseGpus(gpu_state::Services& services, const store::Manifest& manifest,
                                  const RestoreOptions& restore);

Result<OperationResult> Restore(Session& session, const RestoreOptions& restore,
                                const OperationOptions& options);

}  // namespace stasis::operations
