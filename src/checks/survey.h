// Surveys a target before an operation changes anything, and refuses targets that no operation
// supports.
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
  // See plan::RecordedProcess.
  bool context_kept = false;
  uint64_t away_bytes = 0;
  std::vector<device::GpuUuid> visible = {};

  bool suspended() const { return context_kept || state == device::ProcessState::kCheckpointed; }
};

struct Survey {
  Target target;
  process::ProcessTree tree;
  // Processes that left the tree but still belong to the target, for example a worker that became a
  // daemon. They are found below the job's shim, or in the session that the target's root leads.
  std::vector<process::Stat> outside;
  // The GPU processes in the tree and in `outside`.
  std::vector<SurveyedProcess> device_processes;

  // Returns the processes that a suspend includes: the tree, and GPU processes in `outside`.
  std::vector<process::Stat> members() const;

  // Returns the size of the GPU memory in use or, with `suspended`, of the data that a suspend
  // moved away.
  uint64_t device_bytes(bool suspended = false) const;
  // Returns true if the driver reports `state` for all GPU processes. It reports a process with a
  // kept context as running.
  bool AllIn(device::ProcessState state) const;
  bool AnySuspended() const;
  bool AllSuspended() const;
  // Makes the journal's header with this process as the owner.
  Result<plan::Operation> ToOperation(const std::string& verb) const;
  // Returns the GPU processes in the form that the journal's header stores.
  std::vector<plan::RecordedProcess> RecordedProcesses() const;
};

// A refusal, with its id in docs/check.md.
struct Refused {
  std::string id;
  Error error;
};

// Reads the tree and its GPU processes. Refuses a thread's id, pid 1, a kernel thread, this
// process, another user's process, a traced or ended process, and a failed GPU state. With
// `refused`, appends refusals to that list if the survey can go on after them, and does not check
// for tracers, which CheckBeforeDump() does too.
Result<Survey> SurveyTarget(gpu_state::Services& services, const Target& target,
                            std::vector<Refused>* refused = nullptr);

// Returns the file of the job's output, or an empty id for a process without a job.
FileId LogOf(const gpu_state::Services& services, const Target& target);

// Returns kUnimplemented if a process of the tree holds GPU files but the driver cannot checkpoint
// it: CRIU would fail on it.
Status CheckOnlyDeviceUsers(gpu_state::Services& services, const Survey& survey);

// Returns kUnimplemented if the target has processes outside of its tree: any process of a job, or
// a GPU process otherwise. They would be neither in the image nor ended by the dump.
Status CheckNothingOutside(const Survey& survey);

// Returns kPermissionDenied if a process no longer belongs to the caller (process/identity.h): it
// may have run a set-user-id program since the survey.
Status CheckStillOwn(const Survey& survey);

// Checks that the tree is still the surveyed one. The error names the process that started or
// ended; see TreeHasChanged().
Status CheckUnchanged(const Survey& survey);
// Checks that the GPU processes, including those outside of the tree, are still the surveyed ones.
Status CheckSameUsers(gpu_state::Services& services, const Survey& survey);
// Returns the error of a dump that could not receive the CPU memory that CRIU wrote, for example
// because the program had grown since the survey. A retry in which CRIU writes it to the store may
// succeed.
Error CpuMemoryNotReceived(const Error& cause);
bool IsCpuMemoryNotReceived(const Error& error);
// Returns true for an error of CheckUnchanged or CheckSameUsers, after which a retry may succeed.
bool TreeHasChanged(const Error& error);
// If `error` says that a process does not exist, and the target's root is still alive, returns an
// error for which TreeHasChanged() is true. Otherwise returns `error` unchanged.
Error AsTreeChange(const Target& target, Error error);

}  // namespace stasis::checks
