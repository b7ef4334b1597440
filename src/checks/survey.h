// Everything that is looked at before anything is touched, and the refusals that follow from it.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "gpu_state/services.h"
#include "plan/journal.h"
#include "process/tree.h"

namespace stasis::checks {

struct Target {
  std::string name;  // as the user typed it: a job or a process id
  std::string job;   // empty for a bare process
  process::ProcessId root;
};

struct SurveyedProcess : device::DeviceProcess {
  // As in RecordedProcess.
  bool context_kept = false;
  uint64_t away_bytes = 0;

  bool suspended() const { return context_kept || state == device::ProcessState::kCheckpointed; }
};

struct Survey {
  Target target;
  process::ProcessTree tree;
  // Processes that left the tree and still belong to the target, as a worker does that made itself
  // a daemon: of a job what hangs below its shim, of a process those of the session that it leads.
  std::vector<process::Stat> outside;
  // Of both.
  std::vector<SurveyedProcess> device_processes;

  // The tree, and of those outside of it whoever uses a GPU: what an operation on the GPU touches.
  std::vector<process::Stat> members() const;

  // GPU memory that they hold now, or that they gave up.
  uint64_t device_bytes(bool suspended = false) const;
  // By the driver's word, which calls one that kept its context running.
  bool AllIn(device::ProcessState state) const;
  bool AnySuspended() const;
  bool AllSuspended() const;
  // The journal's header, with the owner being us.
  Result<plan::Operation> ToOperation(const std::string& verb) const;
  // As the journal's header has them.
  std::vector<plan::RecordedProcess> RecordedProcesses() const;
};

// A reason why an operation would be refused, by its name in docs/check.md.
struct Refused {
  std::string id;
  Error error;
};

// Reads the tree and its GPU processes and refuses what can never be done: a thread's id, pid 1, a
// kernel thread, ourselves, somebody else's process, a traced or ended one, a GPU state that has
// failed, a process that inherited GPU files by fork.
// With `refused`, what need not end the survey is put there instead; what AskBeforeDump finds too
// is left to that.
Result<Survey> SurveyTarget(gpu_state::Services& services, const Target& target,
                            std::vector<Refused>* refused = nullptr);

// Which file the job's output goes to; none for a bare process.
FileId LogOf(const gpu_state::Services& services, const Target& target);

// Nobody of the tree holds GPU files without being a process that the driver can checkpoint: CRIU
// would fail on it.
Status CheckOnlyDeviceUsers(gpu_state::Services& services, const Survey& survey);

// An image holds a tree: of a job nothing may be outside of it, of a process nobody who uses a GPU.
// It would neither be in the image nor ended with it.
Status CheckNothingOutside(const Survey& survey);

// Every process of it is still the caller's own (process/identity.h): one may have run a set-id
// program since the survey. kPermissionDenied.
Status CheckStillOwn(const Survey& survey);

// The tree is still the one that was surveyed. The error names what came or went; see
// TreeHasChanged().
Status CheckUnchanged(const Survey& survey);
// Only those who use a GPU are asked for, outside of the tree too: others may come and go.
Status CheckSameUsers(gpu_state::Services& services, const Survey& survey);
// The error of those two: worth a second try.
bool TreeHasChanged(const Error& error);
// That error where `error` says of any process but the target itself that there is none; else
// `error`.
Error WithChange(const Target& target, Error error);

}  // namespace stasis::checks
