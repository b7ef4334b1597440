// Runs a command of the user's configuration that prints a secret.
#pragma once

#include <cstddef>
#include <stop_token>
#include <string>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis {

struct ShellCommand {
  std::string setting;  // names the command in errors, which do not show the command itself
  std::string command;  // run by /bin/sh
  size_t max_bytes;     // maximum size of its output
};

// Runs the command in a session of its own and returns its output. stdin is /dev/null. The caller
// erases the output (erase.h). Errors contain none of the output, and at most one line of stderr:
//   kUnavailable        the command failed
//   kResourceExhausted  it prints more than max_bytes
//   kDeadlineExceeded   it has not ended in time
//   kCancelled          `stop` was requested
// After the last three its process group has been killed. If the command has ended, the call
// neither waits for processes that it leaves behind nor kills them.
Result<std::string> RunShellCommand(const ShellCommand& command, const Deadline& deadline,
                                    const std::stop_token& stop = {});

}  // namespace stasis
