// Adopts a running program that Stasis did not start: it becomes a job with a name. The program is
// not touched. Until it is restored from an image it has no shim, so Stasis has no exit code, log
// or terminal for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "jobs/job.h"
#include "jobs/store.h"
#include "process/proc.h"

namespace stasis::jobs {

struct ManageRequest {
  process::HostPid pid;
  std::string id;          // empty: generate one
  uint64_t most_jobs = 0;  // see NewJob
  std::string share;       // see Job
  // Called when the job is visible to others but not yet permanent. An error removes it again.
  std::function<Status(const process::ProcessId&)> confirm;
};

// Adopts a program, identified by pid and start time, so a later program with the same pid is not
// mistaken for it. If several requests for one program are concurrent, only one succeeds. Errors:
// kInvalidArgument for a thread id or an invalid name; kNotFound if there is no such process;
// kPermissionDenied if the program or a descendant does not belong to the caller; kAlreadyExists if
// the name is taken, or if the program is part of a job or contains one; kUnimplemented for init, a
// kernel thread, a Stasis program, and this command and its ancestors.
Result<Job> Manage(const Store& store, const ManageRequest& request);

// Returns true if the process is alive and has the name of a shim. The shim may belong to any user
// and store.
bool IsShim(const process::Stat& stat);

// Returns an error if `pid` is the calling process or one of its ancestors. A client of the daemon
// must call this itself, because the daemon is not a descendant of the user's shell.
Status CheckNotAbove(process::HostPid pid);

// Returns kFailedPrecondition for an adopted job, because it has neither log nor terminal. `what`
// names the attempted action in the message, for example "attach to".
Status CheckHasOutput(const Job& job, const std::string& what);

// Parses a pid given by the user. Returns a usage error if it is invalid.
Result<process::HostPid> ParsePid(const std::string& text);

}  // namespace stasis::jobs
