// Following a job: its output, its terminal, its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "cli/detach_keys.h"
#include "cli/verb.h"
#include "jobs/store.h"
#include "jobs/terminal_client.h"

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

struct AttachOptions {
  std::string detach_keys = kDefaultDetachKeys;
  bool watch = false;  // only look
  void AddTo(App verb);
};

// Stays with a running job in the foreground. Of one without a terminal: copies what its log gains
// from `log_offset` on to stdout, and passes signals on: SIGINT and SIGQUIT to the job's process
// group, as a terminal would, SIGTERM to its root. Of one with a terminal: see attach_terminal.h.
// SIGHUP, or a stdout that nobody reads any more, detaches: the job goes on, and the result is 0.
// One that only watches passes nothing on, and the other signals detach it too. Else the job's exit
// code: its own, 128+n for a signal, 75 when it was dumped.
Outcome Attach(const Globals& globals, const jobs::Store& store, const std::string& id,
               uint64_t log_offset, const AttachOptions& options, CaughtSignals signals);

// Whether it has a terminal that can be attached to.
bool HasTerminal(const jobs::Store& store, const jobs::Job& job);

// Copies the log to stdout from `offset` on; with `follow` until the job has ended.
Status CopyLog(const jobs::Store& store, const jobs::Job& job, uint64_t offset, bool follow);

// The exit code that stands for a job's end; an error for one of which nobody knows.
Outcome ExitCodeOf(const jobs::Job& job);
// `adopted`: it never had a shim.
tl::unexpected<Error> FailUnknownEnd(const std::string& id, bool adopted);

// What both ways of attaching have in common: what is returned when the tree below `root` is the
// job no more, after a word to the user; absent while it is.
std::optional<Outcome> EndOf(const Globals& globals, const jobs::Job& job,
                             const process::ProcessId& root);
void PassOn(const process::ProcessId& root, int signal);
Outcome Detached(const Globals& globals, const std::string& id);

}  // namespace stasis::cli
