// Runs the command that prints a key.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::repository {

// Runs `command` with /bin/sh and returns what it prints, at most `max_bytes`. stdin is /dev/null.
// The errors are those of ReadKeyFromCommand (keys.h). Their messages contain nothing of the
// output, and at most one line of stderr. If the command is killed, so is its process group.
Result<std::string> RunKeyCommand(const std::string& command, size_t max_bytes,
                                  const Deadline& deadline);

}  // namespace stasis::repository
