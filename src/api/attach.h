// Attaches the user's terminal to a job until the job ends or the user detaches. These are library
// calls for a client on the job's machine, not methods of the service.
//
// - A job without a terminal: its log is copied to stdout, and signals are forwarded: SIGINT and
//   SIGQUIT to the job's process group, as a terminal would, others to its root process (except
//   SIGWINCH, SIGCONT and those listed in attach.cc).
// - A job with a terminal: keys go to the program, its output is shown, and it gets the window's
//   size. Meanwhile the local terminal is in raw mode.
//
// The detach keys, SIGHUP, and a closed stdout or terminal detach; the job continues. With `watch`,
// or at a job's terminal if stdin is not a terminal, no input is forwarded, and a signal that would
// otherwise be forwarded detaches.
//
//   result  reason
//   N       the job exited with code N
//   128+N   signal N killed the job
//   75      the job was dumped
//   0       detached
#pragma once

#include <functional>
#include <string>

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Prints a note for the user on stderr. May be empty.
using Note = std::function<void(const std::string& text)>;

// Attaches to a running job. Shows the end of its output first.
Result<int> Attach(const Call& call, const std::string& job, const v1::AttachOptions& options,
                   const Note& note);
// Starts a job and attaches to it. With `request.terminal` the program gets a terminal; otherwise a
// pipe or file on stdin becomes its standard input.
Result<int> RunAttached(Call& call, const v1::RunRequest& request, const v1::AttachOptions& options,
                        const Note& note);
// Calls `restore`, which returns the id of the restored job. Attaches to that job, and shows its
// output since the restore. Returns 0 if the id is empty.
Result<int> RestoreAttached(const Call& call, const v1::RestoreRequest& request,
                            const std::function<Result<std::string>()>& restore,
                            const v1::AttachOptions& options, const Note& note);

// Returns the exit code of a job that has ended, or an error if the exit code is unknown.
Result<int> ExitCodeOf(const v1::Job& job);

// Returns the window size of this process's terminal, or zeros if it has none.
v1::WindowSize OwnWindowSize();

}  // namespace stasis::api
