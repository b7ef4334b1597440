// The operations that a user may ask for. Each looks first (checks/survey.h), refuses what cannot
// be done, and then runs a plan under a journal. All of them finish or undo what killed runs left
// before they do anything else.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "checks/survey.h"
#include "criu/options.h"
#include "gpu_state/away.h"
#include "operations/result.h"
#include "operations/session.h"
#include "plan/account.h"
#include "store/codec.h"

namespace stasis::operations {

// What the user may say about any operation.
struct OperationOptions : gpu_state::AwayOptions {
  std::chrono::milliseconds timeout{0};  // for every phase; 0: each phase's own
  bool dry_run = false;                  // survey and plan, but touch nothing
  plan::Progress progress;
  std::function<bool()> cancelled;
};

// Gives up the GPU, keeps the process: its GPU state goes into its own memory, by the driver.
Result<OperationResult> Suspend(Session& session, const checks::Target& target,
                                const OperationOptions& options);

// Takes the GPU back.
struct ResumeOptions {
  std::string gpu_map;  // "OLD=NEW,..."
};
Result<OperationResult> Resume(Session& session, const checks::Target& target,
                               const ResumeOptions& resume, const OperationOptions& options);

// Writes a complete image, then ends the program (or lets it run on).
struct DumpOptions {
  std::string store;  // folder in which the image appears
  std::string name;   // of the image; empty: made from the target's name and the time
  bool leave_running = false;
  bool full = false;  // every block is written, also what an earlier image has
  store::Compression compression = store::Compression::kNone;
  criu::Options criu;
};
Result<OperationResult> Dump(Session& session, const checks::Target& target,
                             const DumpOptions& dump, const OperationOptions& options);

// Brings a program back from an image.
struct RestoreOptions {
  std::string image;       // path
  std::string job;         // the id to run it under; empty: the one in the image, or a new one
  std::string log;         // where its output goes; empty: the job's log
  std::string gpu_map;     // "OLD=NEW,..."
  bool new_pidns = false;  // into a pid namespace of its own, of which its shim is the init
  // Skips the checks of who wrote the image and who could have changed it (checks/image_trust.h).
  bool trust_image = false;
  criu::Options criu;
};
Result<OperationResult> Restore(Session& session, const RestoreOptions& restore,
                                const OperationOptions& options);

}  // namespace stasis::operations
