// Starts `stasis receive` on another host.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"

namespace stasis::migration {

// Returns an error unless `host` can be an argument of ssh: [USER@]HOST, or an alias of
// ssh_config(5).
Status CheckHost(const std::string& host);

class SshCommand {
 public:
  // Runs `command HOST remote_command`, where `command` is a line for /bin/sh, for example
  // "ssh -o BatchMode=yes". The command inherits stderr.
  static Result<std::unique_ptr<SshCommand>> Start(const std::string& command,
                                                   const std::string& host,
                                                   const std::string& remote_command);
  // Kills the command if it is still running.
  ~SshCommand();
  SshCommand(const SshCommand&) = delete;

  // Returns the socket that is the command's stdin and stdout. The caller owns it.
  UniqueFd TakeSocket() { return std::move(socket_); }
  // Adds the command's exit status to the error of a lost connection, if the command has ended or
  // ends soon.
  Error Explain(Error error);
  // Waits for the end of the command, after its socket was closed.
  void Finish(const Deadline& deadline);

 private:
  SshCommand(Subprocess process, UniqueFd socket, std::string host)
      : process_(std::move(process)), socket_(std::move(socket)), host_(std::move(host)) {}

  Subprocess process_;
  UniqueFd socket_;
  const std::string host_;
  bool ended_ = false;
};

}  // namespace stasis::migration
