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

// Captures every signal that may be meant for an attached job, so that it can be forwarded. Create
// it before the job starts, so that an early Ctrl-C is not lost.
class CaughtSignals {
 public:
  static Result<CaughtSignals> Catch();
  int fd() const { return fd_.get(); }
  int Read();  // returns the next signal, 0 if there is none

 private:
  UniqueFd fd_;
};

struct AttachOptions {
  std::string detach_keys = kDefaultDetachKeys;
  bool watch = false;  // do not send input or signals
  void AddTo(App verb);
};

// Attaches to a running job until it ends or the user detaches.
//
// - Without a terminal: copies the log from `log_offset` on to stdout and forwards signals: SIGINT
//   and SIGQUIT to the job's process group, as a terminal would, others to its root (except those
//   listed in attach.cc, SIGWINCH and SIGCONT).
// - With a terminal: see attach_terminal.h.
//
// SIGHUP and a closed stdout detach: the job continues and the result is 0. With `watch` nothing is
// forwarded and other signals detach too. If the job ends, returns its exit code: 128+n for a
// signal, 75 if it was dumped.
Outcome Attach(const Globals& globals, const jobs::Store& store, const std::string& id,
               uint64_t log_offset, const AttachOptions& options, CaughtSignals signals);

// Returns true if the job has a terminal that can be attached to.
bool HasTerminal(const jobs::Store& store, const jobs::Job& job);

// Copies the log from `offset` on to stdout; with `follow`, until the job has ended.
Status CopyLog(const jobs::Store& store, const jobs::Job& job, uint64_t offset, bool follow);

// Returns the exit code for a job's end, or an error if the end is unknown.
Outcome ExitCodeOf(const jobs::Job& job);
// `adopted`: it never had a shim.
tl::unexpected<Error> FailUnknownEnd(const std::string& id, bool adopted);

// Used by both ways of attaching. If the tree below `root` is no longer the job, tells the user and
// returns the result; otherwise returns nothing.
std::optional<Outcome> EndOf(const Globals& globals, const jobs::Job& job,
                             const process::ProcessId& root);
void PassOn(const process::ProcessId& root, int signal);
Outcome Detached(const Globals& globals, const std::string& id);

}  // namespace stasis::cli
