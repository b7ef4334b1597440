// The operations that a user may ask for. Each looks first (survey.h), refuses what cannot be done,
// and then runs a plan under a journal. All of them finish or undo what killed runs left before
// they do anything else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/recover.h"
#include "coordinator/services.h"
#include "coordinator/survey.h"
#include "criu/options.h"
#include "image/codec.h"

namespace stasis::coordinator {

// Makes the services; the helpers that it starts inherit the journal's lock. With `keep_arenas` the
// next suspend of a process finds its arena warm; else it is given back with a resume.
struct Session {
  Services services;
  std::shared_ptr<Journal> journal;
};
Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas = false);
// Runs an operation in a session of its own. When processes of the program came or went in the
// middle of it, and all is as it was before, it is run once more.
Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation);
// Only the services, for who keeps them longer than one operation and puts them into the session of
// each. `inherit_fd` is held by every helper; -1: none.
Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd = -1);
// How to speak to the driver, for who needs no more than that.
device::ControlOptions ControlOptionsOf(const config::Settings& settings);

// Gives up the GPU, keeps the process: its GPU state goes into its own memory, by the driver.
Result<OperationResult> Suspend(Session& session, const Target& target,
                                const OperationOptions& options);

// Takes the GPU back.
struct ResumeOptions {
  std::string gpu_map;  // "OLD=NEW,..."
};
Result<OperationResult> Resume(Session& session, const Target& target, const ResumeOptions& resume,
                               const OperationOptions& options);

// Writes a complete image, then ends the program (or lets it run on).
struct DumpOptions {
  std::string store;  // folder in which the image appears
  std::string name;   // of the image; empty: made from the target's name and the time
  bool leave_running = false;
  bool full = false;  // every block is written, also what an earlier image has
  image::Compression compression = image::Compression::kNone;
  criu::Options criu;
};
Result<OperationResult> Dump(Session& session, const Target& target, const DumpOptions& dump,
                             const OperationOptions& options);

// Brings a program back from an image.
struct RestoreOptions {
  std::string image;       // path
  std::string job;         // the id to run it under; empty: the one in the image, or a new one
  std::string log;         // where its output goes; empty: the job's log
  std::string gpu_map;     // "OLD=NEW,..."
  bool new_pidns = false;  // into a pid namespace of its own, of which its shim is the init
  // Also one that others could have changed, and of root one of another user (image_trust.h).
  bool trust_image = false;
  criu::Options criu;
};
Result<OperationResult> Restore(Session& session, const RestoreOptions& restore,
                                const OperationOptions& options);

}  // namespace stasis::coordinator
