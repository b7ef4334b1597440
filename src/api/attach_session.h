// Code for attaching to a job (attach.h), with or without a terminal. Internal to this directory.
#pragma once

#include <optional>
#include <string>

#include "api/attach.h"
#include "api/detach_keys.h"
#include "base/fd.h"
#include "jobs/store.h"
#include "jobs/terminal_client.h"

namespace stasis::api {

// Captures every signal that may be meant for an attached job, so that it can be forwarded.
class CaughtSignals {
 public:
  static Result<CaughtSignals> Catch();
  int fd() const { return fd_.get(); }
  int Read();  // returns the next signal, 0 if there is none

 private:
  UniqueFd fd_;
};

struct AttachSession {
  // Captures signals. Call before the job starts, so that an early Ctrl-C is not lost.
  static Result<AttachSession> Begin(const Call& call, const v1::AttachOptions& options, Note note);

  void Tell(const std::string& line) const {
    if (note) note("stasis: " + line + "\n");
  }
  // Prints a line on a terminal in raw mode, separated from the program's output.
  void TellRaw(const std::string& line) const {
    if (note) note("\r\n[stasis: " + line + "]\r\n");
  }
  int Detached(const std::string& job) const {
    Tell("detached; job " + job + " continues");
    return 0;
  }
  // Returns the result of the session if the job has ended, or if its root is no longer `root`.
  // Returns no value otherwise.
  std::optional<Result<int>> EndOf(const jobs::Job& job, const process::ProcessId& root) const;

  jobs::Store store;
  bool watch;
  DetachKeys keys;
  CaughtSignals signals;
  Note note;
};

// Attaches to a running job, with or without a terminal.
Result<int> Follow(AttachSession session, const std::string& job, uint64_t log_offset);
Result<int> FollowTerminal(AttachSession session, const jobs::Job& job);
// Attaches over an existing connection.
Result<int> StayOnTerminal(AttachSession session, const jobs::Job& job,
                           jobs::TerminalClient client);

// Forwards a signal to the root of a job, or to its process group.
void PassOn(const process::ProcessId& root, int signal);

}  // namespace stasis::api
