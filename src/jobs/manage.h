// Adopting a program that runs already and that Stasis did not start: it becomes a job under a
// name. Nothing of the program is touched. It has no shim, so nobody will know its exit code, and
// no log and no terminal of ours, until it is restored from an image.
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
  std::string id;          // empty: one is made up
  uint64_t most_jobs = 0;  // see NewJob
  // Asked when it is a job for all others to see, and before it is one for good: what it refuses,
  // is none again.
  std::function<Status(const process::ProcessId&)> confirm;
};

// What is known by its process id and start time is a job when this returns: another program that
// gets the number later is not mistaken for it. Of several who ask for one program at the same time
// one has it. kInvalidArgument: a thread's id, a name that can be none. kNotFound: no such process,
// or it has ended. kPermissionDenied: it, or a process below it, is not the caller's.
// kAlreadyExists: the name is taken, or it is in a job already, or a job is in its tree.
// kUnimplemented: init, a kernel thread, a program of Stasis, this very command or what it runs
// below.
Result<Job> Manage(const Store& store, const ManageRequest& request);

// It lives, and is by its name the shim of a job, of whichever user and in whichever store.
bool IsShim(const process::Stat& stat);

// Refuses this process and those above it. Whoever has the daemon adopt a program asks this first:
// the daemon does not run below the user's shell.
Status CheckNotAbove(process::HostPid pid);

// kFailedPrecondition: it is such a job, and there is nothing to `what` of its output ("attach
// to").
Status CheckHasOutput(const Job& job, const std::string& what);

// A process id as it was typed. Wrong usage: it is none.
Result<process::HostPid> ParsePid(const std::string& text);

}  // namespace stasis::jobs
