// Following a job: its output, its end.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "cli/verb.h"
#include "jobs/store.h"

namespace stasis::cli {

// Takes the signals that a terminal or a supervisor sends away from us, so that they can be passed
// on to a job. Made before the job is started: a Ctrl-C in between is then not lost.
class CaughtSignals {
 public:
  static Result<CaughtSignals> Catch();
  int fd() const { return fd_.get(); }
  int Read();  // the next one, 0 when there is none

 private:
  UniqueFd fd_;
};

// Stays with a running job in the foreground: copies what its log gains from `log_offset` on to
// stdout, and passes signals on: SIGINT and SIGQUIT to the job's process group, as a terminal
// would, SIGTERM to its root. SIGHUP, or a stdout that nobody reads any more, detaches: the job
// goes on, and the result is 0. Else the job's exit code: its own, 128+n for a signal, 75 when it
// was dumped.
Outcome Attach(const Globals& globals, const jobs::Store& store, const std::string& id,
               uint64_t log_offset, CaughtSignals signals);

// Copies the log to stdout from `offset` on; with `follow` until the job has ended.
Status CopyLog(const jobs::Store& store, const jobs::Job& job, uint64_t offset, bool follow);

// The exit code that stands for a job's end; an error for one of which nobody knows.
Outcome ExitCodeOf(const jobs::Job& job);

}  // namespace stasis::cli
