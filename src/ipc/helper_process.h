// A helper process and the connection to it, as its client sees it. A helper is a Stasis program
// that serves requests over a SOCK_SEQPACKET socket: the device helper or a mover. A private helper
// exits with its client. A resident one keeps running for later commands (resident.h).
//
// Not thread-safe, except Kill().
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"

namespace stasis::ipc {

// Descriptor numbers in every helper.
inline constexpr int kHelperSocketFd = 3;  // the socket of the helper's first client
inline constexpr int kHelperLockFd = 4;    // HelperCommand::lock_fd: held open, never used
inline constexpr int kHelperListenFd = 5;  // resident: a bound socket to listen on

struct HelperCommand {
  std::string program;
  std::vector<std::string> arguments;
  // The whole environment; see ScrubbedEnvironment().
  std::vector<std::string> environment;
  // The helper holds this descriptor until it has no work of this client left (-1: none). If the
  // descriptor holds a journal's lock, the lock stays held while the helper works for the client.
  int lock_fd = -1;
};

class HelperProcess {
 public:
  // Starts a private helper, or with `listener` a resident one, which gets no lock. It has its own
  // session, the environment of the command and only the descriptors above. A resident helper does
  // not depend on the directory or terminal of this process.
  static Result<HelperProcess> Start(const HelperCommand& command, int listener = -1);
  // Connects to a running resident helper.
  HelperProcess(UniqueFd socket, UniqueFd pidfd, pid_t pid)
      : socket_(std::move(socket)), pidfd_(std::move(pidfd)), pid_(pid), resident_(true) {}

  HelperProcess(HelperProcess&&) = default;
  HelperProcess& operator=(HelperProcess&&) = default;

  pid_t pid() const { return pid_; }
  bool resident() const { return resident_; }
  // Returns true if another command started this helper.
  bool found() const { return resident_ && !child_; }
  // The connection; invalid after Disconnect().
  int socket() const { return socket_.get(); }
  void Disconnect() { socket_.Reset(); }

  // Sends SIGKILL. Safe to call from any thread.
  void Kill() const;
  // Waits until the helper has ended, and reaps it if it is a child. Returns how it ended, or
  // nothing at the deadline.
  std::optional<std::string> WaitEnd(const Deadline& deadline);

 private:
  HelperProcess() = default;

  UniqueFd socket_;
  UniqueFd pidfd_;
  pid_t pid_ = 0;
  bool resident_ = false;
  std::optional<Subprocess> child_;  // set if this process started it
};

}  // namespace stasis::ipc
