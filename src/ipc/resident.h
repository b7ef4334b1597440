// Resident helpers: helper processes that keep running between commands. This file finds, starts
// and stops them. The socket of each has a name in a directory that only its user may enter:
//
//   DIR/NAME-BUILD.helper   one for each name and build of the program
//   DIR/NAME-BUILD.lock     held from the creation of the name until the helper answers
//
// A resident helper serves one client at a time. It disconnects others at once, and they start
// private helpers. helper_server.h is the helper's side.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "ipc/helper_process.h"

namespace stasis::ipc {

// Time limit for a first answer. A busy helper disconnects a new client at once and an idle one
// answers at once, so a helper that does not answer within this time is hung (stopped, for example)
// and may be killed.
constexpr std::chrono::seconds kResidentAnswer{5};

// Returns the socket path of a helper. Returns kNotFound if the program does not exist.
Result<std::string> ResidentPath(const std::string& dir, const std::string& name,
                                 const std::string& program);

// Connects to a running helper. Returns kNotFound if none listens there. Returns kAborted if it
// serves another client, or is not trusted because it belongs to another user or pid namespace.
Result<HelperProcess> ConnectResident(const std::string& path);

// A bound socket for a helper that is being started. The name's lock is held until `lock` is
// destroyed.
struct ResidentName {
  UniqueFd lock;
  UniqueFd socket;
};
// Creates the name for a new helper, and the directory if needed. Returns kAborted if another
// process has created a helper there first.
Result<ResidentName> ClaimResidentName(const std::string& path);

// Called by the helper before it exits. Does not wait for the lock: its holder may be waiting for
// this helper, and a stale name is harmless. Leaves the lock file.
void RemoveResidentName(const std::string& path);

// The outcome of the first request to a helper.
enum class Greeting {
  kServes,  // it serves this process now
  kBusy,    // it serves another client, or has just exited
  kSilent,  // it did not answer in time
  kBroken,  // its answer was invalid, or it cannot work any more
};
// Sends a first request and waits for the answer. An error means that the helper works but cannot
// do what is asked; OpenResident returns the error.
using Greet = std::function<Result<Greeting>(HelperProcess& helper, const Deadline& deadline)>;

struct ResidentOptions {
  std::string path;  // from ResidentPath()
  // The request that makes a helper release everything that it holds for its client, and exit.
  std::string leave_request;
  std::chrono::milliseconds settle_timeout{10000};  // time limit for the exit of a killed helper
};
// Returns the helper of that name after `greet` returned kServes; starts one if none is running. A
// helper is replaced if it hangs, is broken, or has other resource limits or control groups than
// this process (process/inheritance.h). Returns nothing if no helper is available, for example
// because it serves another client; the caller then starts a private one.
Result<std::optional<HelperProcess>> OpenResident(const HelperCommand& command,
                                                  const ResidentOptions& options,
                                                  const Greet& greet, const Deadline& deadline);

// Asks a helper without another client to exit, kills one that hangs or does not exit, and waits
// until it has ended. Returns false if it serves another client, kDeadlineExceeded if it does not
// end.
Result<bool> Dismiss(HelperProcess& helper, const std::string& leave_request,
                     const Deadline& deadline);

// Dismisses all helpers in `dir` whose name begins with `prefix`. Returns the number of helpers
// stopped, or the first error after all have been asked.
Result<int> DismissAll(const std::string& dir, const std::string& prefix,
                       const std::string& leave_request, const Deadline& deadline);

}  // namespace stasis::ipc
