// Everything that is looked at before anything is touched, and the refusals that follow from it.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "coordinator/journal.h"
#include "coordinator/services.h"
#include "process/tree.h"

namespace stasis::coordinator {

struct Target {
  std::string name;  // as the user typed it: a job or a process id
  std::string job;   // empty for a bare process
  process::ProcessId root;
};

struct Survey {
  Target target;
  process::ProcessTree tree;
  std::vector<device::DeviceProcess> device_processes;

  // GPU memory of those that hold it now, or of those that gave it up.
  uint64_t device_bytes(bool suspended = false) const;
  bool AllIn(device::ProcessState state) const;
  // The journal's header, with the owner being us.
  Result<Operation> ToOperation(const std::string& verb) const;
};

// Reads the tree and its GPU processes and refuses what can never be done: a thread's id, pid 1, a
// kernel thread, ourselves, somebody else's process, a traced or ended one, a GPU state that has
// failed, a process that inherited GPU files by fork.
Result<Survey> SurveyTarget(Services& services, const Target& target);

// Which file the job's output goes to; none for a bare process.
FileId LogOf(const Services& services, const Target& target);

// Nobody of the tree holds GPU files without being a process that the driver can checkpoint: CRIU
// would fail on it.
Status CheckOnlyDeviceUsers(Services& services, const Survey& survey);

// The job is its tree: a daemon that left it would neither be in the image nor ended with it.
Status CheckNothingOutside(Services& services, const Survey& survey);

// The tree is still the one that was surveyed. kAborted names what changed.
Status CheckUnchanged(const Survey& survey);

// The driver saves GPU memory into the program's own RAM: is there room for `bytes` more?
// kResourceExhausted if not.
// Both of the machine and of the control groups that `pid` is in.
Status CheckHostMemory(uint64_t bytes, process::HostPid pid);

}  // namespace stasis::coordinator
